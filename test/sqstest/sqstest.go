// Package sqstest provides emulators to tests: ElasticMQ, of Amazon SQS, and moto, of Amazon SNS with queues of SQS
// that subscribe. They are not SQS and SNS: they forget their queues when they end, so a test that kills one reads what
// it has before.
package sqstest

import (
	"context"
	_ "embed" // pom.xml
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/maven"
)

// patience bounds a start of a server, with the fetch of its jars.
const patience = 15 * time.Minute

// Account is the account of all queues.
const Account = "000000000000"

// Region is that of the server.
const Region = "eu-central-1"

//go:embed pom.xml
var pom []byte

var jars = maven.Jars{Name: "ElasticMQ 1.7.1", POM: pom, Want: "elasticmq-server_2.13-1.7.1.jar"}

// Server is an emulator of a test's own on 127.0.0.1.
type Server struct {
	URL    string      // of the account
	Admin  *sqs.Client // goes past what Cut cuts
	t      testing.TB
	addr   string
	dir    string
	proxy  *faultproxy.Proxy
	launch launch
	topics bool // a queue has a topic of SNS of its name, to which it subscribes
	proc   *child.Process

	mu   sync.Mutex // guards the following
	read map[string][]types.Message
	has  map[string]bool // by message id
	dead bool
}

// Credentials are those of a client. The emulators take any.
var Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "Geh3im"}, nil
})

// Start runs ElasticMQ until the end of the test. A test without it is skipped; with CI=true it fails.
func Start(t testing.TB) *Server {
	t.Helper()
	maven.Need(t, &jars)
	s, err := Open()
	return s.of(t, err)
}

// of makes an opened server one of a test.
func (s *Server) of(t testing.TB, err error) *Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.t = t
	return s
}

// Available returns nil when a server can run here.
func Available() error { return jars.Available() }

// Open runs a server until Close, for a program that is no test. Of its methods, Close and Left are for such a program.
func Open() (*Server, error) {
	return open(func(s *Server, port string) (launch, error) {
		conf := filepath.Join(s.dir, "elasticmq.conf")
		text := fmt.Sprintf("include classpath(\"application.conf\")\nrest-sqs { bind-port = %s, bind-hostname = \"127.0.0.1\" }\nnode-address { host = \"127.0.0.1\", port = %s }\nrest-stats { enabled = false }\n"+
			"aws { region = %q, accountId = %q }\npekko.http.server { request-timeout = 15 minutes, idle-timeout = 16 minutes }\n", port, port, Region, Account)
		java := maven.Server{Jars: &jars, Dir: s.dir, Ready: s.ready}
		java.Args = func(libs string) []string {
			return []string{"-Dconfig.file=" + conf, "-cp", filepath.Join(libs, "*"), "org.elasticmq.server.Main"}
		}
		return java.Start, os.WriteFile(conf, []byte(text), 0o600)
	})
}

// launch starts the process of an emulator.
type launch func(ctx context.Context) (*child.Process, error)

// open runs the emulator that emulator makes for a server with a port.
func open(emulator func(s *Server, port string) (launch, error)) (*Server, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	proxy, err := faultproxy.Start(addr)
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + proxy.Addr() + "/" + Account, addr: addr, proxy: proxy, read: map[string][]types.Message{}, has: map[string]bool{}}
	s.Admin = sqs.New(sqs.Options{Region: Region, BaseEndpoint: aws.String("http://" + addr), Credentials: Credentials, Retryer: aws.NopRetryer{}, HTTPClient: &http.Client{Timeout: time.Minute}})
	s.dir, err = os.MkdirTemp("", "outboxcdc-sqs-")
	if err == nil {
		s.launch, err = emulator(s, strconv.Itoa(port))
	}
	if err == nil {
		err = s.start()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) ready(ctx context.Context) error {
	_, err := s.Admin.ListQueues(ctx, &sqs.ListQueuesInput{})
	return err
}

func (s *Server) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.proc, err = s.launch(ctx)
	return err
}

func (s *Server) queue(name string) *string {
	return aws.String("http://127.0.0.1/" + Account + "/" + name)
}

// Create creates a FIFO queue, and with SNS its topic.
func (s *Server) Create(name string) {
	s.t.Helper()
	if _, err := s.Admin.CreateQueue(context.Background(), &sqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"FifoQueue": "true", "VisibilityTimeout": "5"}}); err != nil {
		s.t.Error(err)
	}
	if s.topics {
		s.subscribe(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read[name] == nil {
		s.read[name] = []types.Message{}
	}
}

// Delete deletes a queue, and keeps what it has for Read; with SNS it deletes its topic instead.
func (s *Server) Delete(name string) {
	s.t.Helper()
	if s.topics {
		s.SNS("sns", "Action", "DeleteTopic", "TopicArn", topicARN+name)
		return
	}
	s.Read(name)
	if _, err := s.Admin.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: s.queue(name)}); err != nil {
		s.t.Error(err)
	}
}

// Empty deletes a queue with all that it had, and creates it again.
func (s *Server) Empty(name string) {
	s.t.Helper()
	if _, err := s.Admin.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: s.queue(name)}); err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	delete(s.read, name)
	s.mu.Unlock()
	s.Create(name)
}

// Read returns all messages of a queue, as its only consumer has received them. Whether it has all is what the server
// says: a message whose receipt was lost is received again after its visibility timeout, and is one message.
func (s *Server) Read(name string) []types.Message {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !s.dead {
		switch all, err := s.receive(ctx, name); {
		case ctx.Err() != nil:
			s.t.Errorf("read the queue %s: %v", name, err)
			return s.read[name]
		case all:
			return s.read[name]
		case err != nil:
			time.Sleep(10 * time.Millisecond)
		}
	}
	return s.read[name]
}

// receive receives up to ten messages. It reports whether the queue has no further ones, or does not exist.
func (s *Server) receive(ctx context.Context, name string) (all bool, err error) {
	got, err := s.Admin.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: s.queue(name), MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
	})
	if missing := (*types.QueueDoesNotExist)(nil); errors.As(err, &missing) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if len(got.Messages) == 0 {
		waiting, received, err := s.count(ctx, name)
		return err == nil && waiting == 0 && received == 0, err
	}
	in := &sqs.DeleteMessageBatchInput{QueueUrl: s.queue(name)}
	for i, m := range got.Messages {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
		if id := aws.ToString(m.MessageId); !s.has[id] {
			s.has[id] = true
			s.read[name] = append(s.read[name], m)
		}
	}
	if out, err := s.Admin.DeleteMessageBatch(ctx, in); err != nil || len(out.Failed) > 0 {
		return false, fmt.Errorf("delete %d messages: %v, %w", len(in.Entries), out, err)
	}
	return false, nil
}

// count returns the number of messages that wait in a queue, and of those that were received and not deleted.
func (s *Server) count(ctx context.Context, name string) (waiting, received int, err error) {
	names := []types.QueueAttributeName{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"}
	out, err := s.Admin.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: s.queue(name), AttributeNames: names})
	if err != nil {
		return 0, 0, err
	}
	waiting, err = strconv.Atoi(out.Attributes[string(names[0])])
	if err == nil {
		received, err = strconv.Atoi(out.Attributes[string(names[1])])
	}
	return waiting, received, err
}

// Left returns the number of messages of a queue that were not deleted.
func (s *Server) Left(ctx context.Context, name string) (int, error) {
	waiting, received, err := s.count(ctx, name)
	return waiting + received, err
}

// Stored returns the number of messages that a queue has had, and receives none.
func (s *Server) Stored(name string) int {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return len(s.read[name])
	}
	waiting, received, err := s.count(context.Background(), name)
	if err != nil {
		s.t.Error(err)
	}
	return len(s.read[name]) + waiting + received
}

// Kill cuts all clients off, reads what the queues have, and ends the server with SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.proxy.Set(faultproxy.Faults{Refuse: true}); err != nil {
		s.t.Fatal(err)
	}
	s.proxy.CutAll(true)
	for _, name := range s.names() {
		s.Read(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	if err := s.proc.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Restart starts a server that was killed, with empty queues. It no longer knows what it had. Clients reach it before
// its queues exist.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.dead = false
	s.mu.Unlock()
	if err := s.proxy.Set(faultproxy.Faults{}); err != nil {
		s.t.Fatal(err)
	}
	for _, name := range s.names() {
		s.Create(name)
	}
}

func (s *Server) names() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.read {
		all = append(all, name)
	}
	return all
}

// Close ends the server.
func (s *Server) Close() {
	_ = s.proxy.Close()
	if s.proc != nil {
		_ = s.proc.Kill()
	}
	_ = os.RemoveAll(s.dir)
}
