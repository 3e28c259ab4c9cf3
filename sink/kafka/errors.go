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

// class is how an error of Kafka is handled.
type class uint8

const (
	endSession class = iota // the session ends; a later one may well succeed
	resend                  // the same batch may be taken later; the session ends when it was tried too often
	denied                  // a permission is missing
	refused                 // the broker refuses the records for what they are: no retry of the same batch can succeed
)

// kind is the meaning of an error code.
type kind struct {
	reason string // Kafka's own name: a label value, so the set is closed
	class  class
}

// kinds is the table of Kafka's error codes. Other codes have the reason "OTHER" and the class endSession.
// DUPLICATE_SEQUENCE_NUMBER is not in the table, because it is an ack.
var kinds = map[sarama.KError]kind{
	sarama.ErrUnknown:                         {"UNKNOWN_SERVER_ERROR", endSession},
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
	sarama.ErrInvalidTopic:                    {"INVALID_TOPIC_EXCEPTION", endSession},
	sarama.ErrNotEnoughReplicas:               {"NOT_ENOUGH_REPLICAS", resend},
	sarama.ErrNotEnoughReplicasAfterAppend:    {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", resend}, // the batch is in the log
	sarama.ErrInvalidRequiredAcks:             {"INVALID_REQUIRED_ACKS", endSession},
	sarama.ErrUnsupportedVersion:              {"UNSUPPORTED_VERSION", endSession},
	sarama.ErrUnsupportedForMessageFormat:     {"UNSUPPORTED_FOR_MESSAGE_FORMAT", endSession},
	sarama.ErrPolicyViolation:                 {"POLICY_VIOLATION", endSession},
	sarama.ErrOutOfOrderSequenceNumber:        {"OUT_OF_ORDER_SEQUENCE_NUMBER", endSession},
	sarama.ErrInvalidProducerEpoch:            {"INVALID_PRODUCER_EPOCH", endSession},
	sarama.ErrInvalidProducerIDMapping:        {"INVALID_PRODUCER_ID_MAPPING", endSession},
	sarama.ErrUnknownProducerID:               {"UNKNOWN_PRODUCER_ID", endSession},
	sarama.ErrKafkaStorageError:               {"KAFKA_STORAGE_ERROR", resend},
	sarama.ErrUnsupportedSASLMechanism:        {"UNSUPPORTED_SASL_MECHANISM", endSession},
	sarama.ErrIllegalSASLState:                {"ILLEGAL_SASL_STATE", endSession},
	sarama.ErrSASLAuthenticationFailed:        {"SASL_AUTHENTICATION_FAILED", endSession}, // retried, because credentials rotate
	sarama.ErrUnsupportedCompressionType:      {"UNSUPPORTED_COMPRESSION_TYPE", endSession},
	sarama.ErrFencedLeaderEpoch:               {"FENCED_LEADER_EPOCH", resend},
	sarama.ErrThrottlingQuotaExceeded:         {"THROTTLING_QUOTA_EXCEEDED", resend},
	sarama.ErrUnknownLeaderEpoch:              {"UNKNOWN_LEADER_EPOCH", resend},
	sarama.ErrOffsetNotAvailable:              {"OFFSET_NOT_AVAILABLE", resend}, // a new leader

	sarama.ErrTopicAuthorizationFailed:           {"TOPIC_AUTHORIZATION_FAILED", denied},
	sarama.ErrGroupAuthorizationFailed:           {"GROUP_AUTHORIZATION_FAILED", denied},
	sarama.ErrClusterAuthorizationFailed:         {"CLUSTER_AUTHORIZATION_FAILED", denied},
	sarama.ErrTransactionalIDAuthorizationFailed: {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED", denied},

	sarama.ErrMessageSizeTooLarge:    {"MESSAGE_TOO_LARGE", refused},
	sarama.ErrMessageSetSizeTooLarge: {"RECORD_LIST_TOO_LARGE", refused}, // larger than segment.bytes
	sarama.ErrInvalidTimestamp:       {reasonTimestamp, refused},
	sarama.ErrInvalidRecord:          {"INVALID_RECORD", refused},
}

// reasonTimestamp is INVALID_TIMESTAMP: a record's time is too old or too new for its topic.
const reasonTimestamp = "INVALID_TIMESTAMP"

// Reasons of errors without a code of Kafka.
const (
	reasonConnection = "CONNECTION" // no broker was reached, or the connection was lost
	reasonClosed     = "CLOSED"     // we have cut the connection
	reasonClient     = "CLIENT"     // sarama refuses to send the request, or an internal error
	reasonPartitions = "PARTITIONS" // the topic has fewer partitions than before, or more, or was recreated
	reasonTLS        = "TLS"        // the client or the broker does not accept the other's certificate
	reasonLease      = "LEASE"      // the lease ran out
	reasonSecret     = "SECRET"     // our certificate or secret cannot be read
	reasonOther      = "OTHER"
)

// errCut is the error of a dial after the session's connections were cut.
var errCut = errors.New("the session's connections are cut")

// errLost means that we gave up a connection with open requests.
var errLost = errors.New("the connection was lost")

// errUnanswered means that an answer lacks a requested partition.
var errUnanswered = errors.New("the broker's answer does not mention the partition")

// errFewerPartitions means that a topic has fewer partitions than its pinned count, because it was recreated.
var errFewerPartitions = errors.New("fewer partitions than when this process first used the topic")

// errMorePartitions means that a row names a partition that the topic has got since the session first looked it up.
var errMorePartitions = errors.New("the topic has got the partition that a row names: the next session uses it")

// kindOf returns the kind of the first known error in the chain of err.
func kindOf(err error) kind {
	var code sarama.KError
	if errors.As(err, &code) {
		if k, ok := kinds[code]; ok {
			return k
		}
		return kind{reasonOther, endSession}
	}
	// If the broker sent a text, sarama's error matches the code only by errors.Is.
	if code = sarama.ErrSASLAuthenticationFailed; errors.Is(err, code) {
		return kinds[code]
	}
	var netErr net.Error
	var conf sarama.ConfigurationError
	var enc sarama.PacketEncodingError
	var dec sarama.PacketDecodingError
	switch {
	case errors.Is(err, errCut), errors.Is(err, sarama.ErrShuttingDown), errors.Is(err, sarama.ErrClosedClient):
		return kind{reasonClosed, endSession}
	case errors.Is(err, errLease):
		return kind{reasonLease, endSession}
	case errors.Is(err, errFewerPartitions), errors.Is(err, errMorePartitions), errors.Is(err, errRecreated):
		return kind{reasonPartitions, endSession}
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.AlertError)), errors.As(err, new(tls.RecordHeaderError)),
		isAlert(err):
		return kind{reasonTLS, endSession}
	case errors.As(err, new(*secretError)), errors.As(err, new(*brokerauth.TokenError)):
		return kind{reasonSecret, endSession}
	case errors.As(err, &conf), errors.As(err, &enc):
		return kind{reasonClient, endSession}
	case errors.Is(err, sarama.ErrOutOfBrokers), errors.Is(err, sarama.ErrNotConnected), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, errLost), errors.Is(err, errSilent), errors.As(err, &netErr),
		// The answer to an earlier request: sarama keeps using a connection on which an answer timed out.
		errors.As(err, &dec):
		return kind{reasonConnection, endSession}
	}
	return kind{reasonOther, endSession}
}

// isAlert reports whether the broker has sent a TLS alert, such as "bad certificate". crypto/tls has no type for such
// errors.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// refusesID reports whether a broker refuses the producer id, the epoch or the sequence number.
func refusesID(err error) bool {
	var code sarama.KError
	return errors.As(err, &code) && slices.Contains([]sarama.KError{
		sarama.ErrInvalidProducerEpoch, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerIDMapping, sarama.ErrOutOfOrderSequenceNumber,
	}, code)
}

// errorList is a list of errors, printed on one line.
type errorList []error

func (s errorList) Error() string {
	texts := make([]string, len(s))
	for i, err := range s {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (s errorList) Unwrap() []error { return s }

// failure is an error of Kafka. Callers distinguish failures by their methods, and do not need the type.
type failure struct {
	op          string // what was attempted
	topic       string // "" if no topic is concerned
	permissions string // required permissions; "": those of a producer
	events      []uint64
	// clock means that Kafka refuses a time that no row has given to the record: the fault is not that of the event.
	clock bool
	err   error
}

func (f *failure) Error() string {
	text := f.op + ": " + f.err.Error()
	switch {
	case f.clock:
		text += "; remedy: no row has given the record its time, so compare the clocks of the daemon's host (with route.timestamp commit, of Postgres) and the " +
			"brokers, and look at message.timestamp.before.max.ms and message.timestamp.after.max.ms of topic " + f.topic
	case !f.PermissionDenied():
	case f.permissions != "":
		text += "; remedy: grant the user " + f.permissions
	case f.topic == "":
		text += "; remedy: grant the daemon's user Write and Describe on its topics, or IdempotentWrite on the cluster"
	default:
		text += "; remedy: grant the daemon's user Write and Describe on topic " + f.topic
	}
	return text
}
func (f *failure) Unwrap() error { return f.err }

// PermissionDenied reports whether Kafka refused because a permission is missing.
func (f *failure) PermissionDenied() bool { return kindOf(f.err).class == denied }

// Refused returns the event numbers of a batch whose records the broker refused. At least one of the records is
// invalid; sending them one by one shows which.
func (f *failure) Refused() ([]uint64, bool) {
	return f.events, kindOf(f.err).class == refused && !f.clock
}

// Topic returns the topic, or "".
func (f *failure) Topic() string { return f.topic }

// Reason returns Kafka's name of the error, or one of the constants. It is a label value from a closed set.
func (f *failure) Reason() string { return kindOf(f.err).reason }
