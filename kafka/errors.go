package kafka

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// class says what the relay can do about an error of Kafka.
type class uint8

const (
	again   class = iota // the session ends; a later one may well succeed
	resend               // the same batch may be taken later; the session ends when it was tried too often
	right                // a right is missing
	refused              // the broker refuses the records for what they are: no retry of the same batch can succeed
)

// kind is what a Kafka error code means to us.
type kind struct {
	reason string // Kafka's own name: a label value, so the set is closed
	class  class
}

// kinds is the one place that decides what a code of the broker means. Codes that are not here are "OTHER", and tried
// again. DUPLICATE_SEQUENCE_NUMBER is none of them: it is an ack.
var kinds = map[sarama.KError]kind{
	sarama.ErrUnknown:                         {"UNKNOWN_SERVER_ERROR", again},
	sarama.ErrInvalidMessage:                  {"CORRUPT_MESSAGE", resend}, // damaged on the wire, not wrong
	sarama.ErrUnknownTopicOrPartition:         {"UNKNOWN_TOPIC_OR_PARTITION", resend},
	sarama.ErrLeaderNotAvailable:              {"LEADER_NOT_AVAILABLE", resend},
	sarama.ErrNotLeaderForPartition:           {"NOT_LEADER_OR_FOLLOWER", resend},
	sarama.ErrRequestTimedOut:                 {"REQUEST_TIMED_OUT", resend}, // the batch may be in the log
	sarama.ErrBrokerNotAvailable:              {"BROKER_NOT_AVAILABLE", resend},
	sarama.ErrReplicaNotAvailable:             {"REPLICA_NOT_AVAILABLE", resend},
	sarama.ErrNetworkException:                {"NETWORK_EXCEPTION", resend},
	sarama.ErrOffsetsLoadInProgress:           {"COORDINATOR_LOAD_IN_PROGRESS", resend},
	sarama.ErrConsumerCoordinatorNotAvailable: {"COORDINATOR_NOT_AVAILABLE", resend},
	sarama.ErrNotCoordinatorForConsumer:       {"NOT_COORDINATOR", resend},
	sarama.ErrInvalidTopic:                    {"INVALID_TOPIC_EXCEPTION", again},
	sarama.ErrNotEnoughReplicas:               {"NOT_ENOUGH_REPLICAS", resend},
	sarama.ErrNotEnoughReplicasAfterAppend:    {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", resend}, // the batch is in the log
	sarama.ErrInvalidRequiredAcks:             {"INVALID_REQUIRED_ACKS", again},
	sarama.ErrUnsupportedVersion:              {"UNSUPPORTED_VERSION", again},
	sarama.ErrUnsupportedForMessageFormat:     {"UNSUPPORTED_FOR_MESSAGE_FORMAT", again},
	sarama.ErrPolicyViolation:                 {"POLICY_VIOLATION", again},
	sarama.ErrOutOfOrderSequenceNumber:        {"OUT_OF_ORDER_SEQUENCE_NUMBER", again},
	sarama.ErrInvalidProducerEpoch:            {"INVALID_PRODUCER_EPOCH", again},
	sarama.ErrInvalidProducerIDMapping:        {"INVALID_PRODUCER_ID_MAPPING", again},
	sarama.ErrUnknownProducerID:               {"UNKNOWN_PRODUCER_ID", again},
	sarama.ErrKafkaStorageError:               {"KAFKA_STORAGE_ERROR", resend},
	sarama.ErrUnsupportedSASLMechanism:        {"UNSUPPORTED_SASL_MECHANISM", again},
	sarama.ErrIllegalSASLState:                {"ILLEGAL_SASL_STATE", again},
	sarama.ErrSASLAuthenticationFailed:        {"SASL_AUTHENTICATION_FAILED", again}, // credentials rotate: waited for, never an exit
	sarama.ErrUnsupportedCompressionType:      {"UNSUPPORTED_COMPRESSION_TYPE", again},
	sarama.ErrFencedLeaderEpoch:               {"FENCED_LEADER_EPOCH", resend},
	sarama.ErrThrottlingQuotaExceeded:         {"THROTTLING_QUOTA_EXCEEDED", resend},
	sarama.ErrUnknownLeaderEpoch:              {"UNKNOWN_LEADER_EPOCH", resend},
	sarama.ErrOffsetNotAvailable:              {"OFFSET_NOT_AVAILABLE", resend}, // a leader that is new

	sarama.ErrTopicAuthorizationFailed:           {"TOPIC_AUTHORIZATION_FAILED", right},
	sarama.ErrGroupAuthorizationFailed:           {"GROUP_AUTHORIZATION_FAILED", right},
	sarama.ErrClusterAuthorizationFailed:         {"CLUSTER_AUTHORIZATION_FAILED", right},
	sarama.ErrTransactionalIDAuthorizationFailed: {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", right},

	sarama.ErrMessageSizeTooLarge:    {"MESSAGE_TOO_LARGE", refused},
	sarama.ErrMessageSetSizeTooLarge: {"RECORD_LIST_TOO_LARGE", refused}, // larger than segment.bytes
	sarama.ErrInvalidTimestamp:       {"INVALID_TIMESTAMP", refused},
	sarama.ErrInvalidRecord:          {"INVALID_RECORD", refused},
}

// Reasons for errors that no broker answered with.
const (
	reasonConnection = "CONNECTION" // no broker reached, or the connection was lost
	reasonClosed     = "CLOSED"     // cut by ourselves
	reasonClient     = "CLIENT"     // sarama refuses to send it, or an internal promise is broken
	reasonPartitions = "PARTITIONS" // the topic has fewer partitions than it had, or is another one of the same name
	reasonTLS        = "TLS"        // a certificate is not accepted, here or there
	reasonLease      = "LEASE"      // the session may not send any more
	reasonSecret     = "SECRET"     // a certificate or a secret of ours cannot be had
	reasonOther      = "OTHER"
)

// errCut is what a dial or a wait meets after the session's connections were cut.
var errCut = errors.New("the session's connections are cut")

// errLost is a connection that was given up with requests in it.
var errLost = errors.New("the connection was lost")

// errUnanswered is an answer that leaves out a partition it was asked about.
var errUnanswered = errors.New("the broker's answer does not mention the partition")

// errFewerPartitions is a topic that lost partitions since its count was pinned: it was deleted and created again.
var errFewerPartitions = errors.New("fewer partitions than when this process first used the topic")

// kindOf looks through the chain of err, which is as deep as sarama pleases.
func kindOf(err error) kind {
	var code sarama.KError
	if errors.As(err, &code) {
		if k, ok := kinds[code]; ok {
			return k
		}
		return kind{reasonOther, again}
	}
	// With the broker's own words beside it, sarama's error has the code as something to compare with only.
	if code = sarama.ErrSASLAuthenticationFailed; errors.Is(err, code) {
		return kinds[code]
	}
	var netErr net.Error
	var conf sarama.ConfigurationError
	var enc sarama.PacketEncodingError
	var dec sarama.PacketDecodingError
	switch {
	case errors.Is(err, errCut), errors.Is(err, sarama.ErrShuttingDown), errors.Is(err, sarama.ErrClosedClient):
		return kind{reasonClosed, again}
	case errors.Is(err, errLease):
		return kind{reasonLease, again}
	case errors.Is(err, errFewerPartitions), errors.Is(err, errCreatedAgain):
		return kind{reasonPartitions, again}
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.AlertError)), errors.As(err, new(tls.RecordHeaderError)),
		isAlert(err):
		return kind{reasonTLS, again}
	case errors.As(err, new(*secretError)), errors.As(err, new(*brokerauth.TokenError)):
		return kind{reasonSecret, again}
	case errors.As(err, &conf), errors.As(err, &enc):
		return kind{reasonClient, again}
	case errors.Is(err, sarama.ErrOutOfBrokers), errors.Is(err, sarama.ErrNotConnected), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, errLost), errors.Is(err, errSilent), errors.As(err, &netErr),
		// An answer to an earlier question: sarama goes on with a connection on which it has not received the first one.
		errors.As(err, &dec):
		return kind{reasonConnection, again}
	}
	return kind{reasonOther, again}
}

// isAlert reports whether the other side has ended TLS with an alert, such as "bad certificate": crypto/tls gives it no type of its own.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// refusesID reports whether a broker does not take the producer id and epoch, or what it knows of them is not what we sent.
func refusesID(err error) bool {
	var code sarama.KError
	return errors.As(err, &code) && slices.Contains([]sarama.KError{
		sarama.ErrInvalidProducerEpoch, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerIDMapping, sarama.ErrOutOfOrderSequenceNumber,
	}, code)
}

// several errors, on one line.
type several []error

func (s several) Error() string {
	texts := make([]string, len(s))
	for i, err := range s {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (s several) Unwrap() []error { return s }

// failure is every error of this package that is about Kafka rather than about the caller. Its methods are how others
// tell failures apart; no caller needs the type.
type failure struct {
	doing  string // what was being done, and where
	topic  string // "" when no topic is concerned
	rights string // that it needs; "": those of a producer
	events []uint64
	err    error
}

func (f *failure) Error() string {
	text := f.doing + ": " + f.err.Error()
	switch {
	case !f.MissingRight():
	case f.rights != "":
		text += "; remedy: grant the user " + f.rights
	case f.topic == "":
		text += "; remedy: grant the daemon's user Write and Describe on its topics, or IdempotentWrite on the cluster"
	default:
		text += "; remedy: grant the daemon's user Write and Describe on topic " + f.topic
	}
	return text
}
func (f *failure) Unwrap() error { return f.err }

// MissingRight reports whether Kafka refused because a permission is missing.
func (f *failure) MissingRight() bool { return kindOf(f.err).class == right }

// Refused returns the event numbers of a batch that the broker refused for what its records are. At least one of them
// is to blame; which one shows only when they are sent one by one.
func (f *failure) Refused() ([]uint64, bool) {
	return f.events, kindOf(f.err).class == refused
}

// Topic is the topic concerned, "" if none.
func (f *failure) Topic() string { return f.topic }

// Reason is a label value out of a closed set: Kafka's name of the error, or one of ours.
func (f *failure) Reason() string { return kindOf(f.err).reason }
