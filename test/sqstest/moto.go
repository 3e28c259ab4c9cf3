package sqstest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/pip"
)

var moto = pip.Packages{Folder: "moto-5.2.5", Pins: []string{"moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"}, Want: "moto/server.py"}

const (
	topicARN = "arn:aws:sns:" + Region + ":" + Account + ":"
	queueARN = "arn:aws:sqs:" + Region + ":" + Account + ":"
)

// counting runs moto with topics that count the subscriptions to which they send what is published.
const counting = `
from moto.sns.models import Topic
Topic.subscriptions_confimed = property(
    lambda topic: sum(1 for s in topic.sns_backend.subscriptions.values() if s.topic is topic), lambda topic, value: None)
from moto.server import main
main()`

// StartSNS runs moto until the end of the test: each queue that is created subscribes to a topic of its name. A test
// without moto is skipped; with CI=true it fails.
//
// What moto does not have: a topic forgets what was published, so only the queue drops a repeat, as long as it has the
// first one; a queue with a message that has an attribute of the type Binary cannot be read; and a topic always has 0
// as SubscriptionsConfirmed, which [counting] changes.
func StartSNS(t testing.TB) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	python, err := pip.Python()
	packages := ""
	if err == nil {
		packages, err = moto.Fetch(ctx)
	}
	child.Need(t, "MOTO, THE EMULATOR OF SNS", err)
	s, err := open(func(s *Server, port string) (launch, error) {
		s.topics = true
		log := filepath.Join(s.dir, "log")
		spec := child.Spec{
			Path: python, Args: []string{"-c", counting, "-H", "127.0.0.1", "-p", port}, Dir: s.dir, LogFile: log, DeathSignal: syscall.SIGKILL,
			Env: append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1", "MOTO_ACCOUNT_ID="+Account),
		}
		return func(ctx context.Context) (*child.Process, error) {
			proc, err := child.Start(spec)
			if err != nil {
				return nil, err
			}
			if err := proc.Poll(ctx, s.ready); err != nil {
				_ = proc.Kill()
				return nil, fmt.Errorf("start moto: %w; its log ends with:\n%s", err, child.Tail(log))
			}
			return proc, nil
		}, nil
	})
	return s.of(t, err)
}

// subscribe creates a topic, and subscribes the queue of its name.
func (s *Server) subscribe(name string) {
	s.t.Helper()
	s.SNS("sns", "Action", "CreateTopic", "Name", name, "Attributes.entry.1.key", "FifoTopic", "Attributes.entry.1.value", "true")
	s.SNS("sns", "Action", "Subscribe", "TopicArn", topicARN+name, "Protocol", "sqs", "Endpoint", queueARN+name, "Attributes.entry.1.key", "RawMessageDelivery", "Attributes.entry.1.value", "true")
}

// SNS calls moto by the Query protocol, of SNS or of another service, and returns the answer. The request is not
// signed.
func (s *Server) SNS(service string, parameters ...string) string {
	s.t.Helper()
	form := url.Values{"Version": {map[string]string{"sns": "2010-03-31", "iam": "2010-05-08"}[service]}}
	for i := 0; i < len(parameters); i += 2 {
		form.Set(parameters[i], parameters[i+1])
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/", strings.NewReader(form.Encode()))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261128/"+Region+"/"+service+"/aws4_request, SignedHeaders=host, Signature=0")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Errorf("moto answers %v with %d %s, %v", parameters, res.StatusCode, text, err)
	}
	return string(text)
}

// Authorize has moto check the signatures and the permissions of requests from now on, or not.
func (s *Server) Authorize(on bool) {
	s.t.Helper()
	unchecked := "inf"
	if on {
		unchecked = "0"
	}
	res, err := http.Post("http://"+s.addr+"/moto-api/reset-auth", "text/plain", strings.NewReader(unchecked))
	if err != nil {
		s.t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		s.t.Errorf("moto answers reset-auth with %d", res.StatusCode)
	}
}
