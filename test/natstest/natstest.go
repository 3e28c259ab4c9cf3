// Package natstest provides a real NATS server with JetStream to tests. The server is a module of Go, which is built
// into the cache of fetched servers; the product does not depend on it.
package natstest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/test/child"
)

const (
	module  = "github.com/nats-io/nats-server/v2"
	version = "v2.15.2"
)

// patience bounds the build and the start of a server.
const patience = 5 * time.Minute

// Stream is the stream that tests create.
const Stream = "EVENTS"

// Server is a NATS server of a test's own on 127.0.0.1.
type Server struct {
	Addr  string
	Admin jetstream.JetStream // of a client that may do everything
	t     testing.TB
	nc    *nats.Conn
	dir   string
	spec  child.Spec
	proc  *child.Process

	mu   sync.Mutex // guards the following
	life context.Context
	cut  context.CancelFunc // ends life
}

// Start runs a server until the end of the test, with further lines of its configuration. login is what the
// administrator logs in with; "": nothing. A test without NATS is skipped; with CI=true it fails.
func Start(t testing.TB, login string, lines ...string) *Server {
	t.Helper()
	var options []nats.Option
	if user, password, both := strings.Cut(login, ":"); both {
		options = append(options, nats.UserInfo(user, password))
	} else if login != "" {
		options = append(options, nats.Token(login))
	}
	return start(t, options, lines...)
}

// start is Start with what the administrator logs in with.
func start(t testing.TB, login []nats.Option, lines ...string) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	path, err := tool(ctx)
	child.Need(t, "NATS", err)
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "outboxcdc-nats-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	t.Cleanup(s.close)
	s.spec = child.Spec{Path: path, Args: []string{"-c", filepath.Join(dir, "nats.conf")}, Env: os.Environ(), Dir: dir, LogFile: filepath.Join(dir, "log"), DeathSignal: syscall.SIGKILL}
	s.Configure(lines...)
	s.Start()
	s.live()
	options := append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(patience),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { s.live() }),
	}, login...)
	if s.nc, err = nats.Connect("nats://"+s.Addr, options...); err != nil {
		t.Fatal(err)
	}
	if s.Admin, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	return s
}

// Configure writes the configuration. It holds from the next start on.
func (s *Server) Configure(lines ...string) {
	s.t.Helper()
	text := fmt.Sprintf("listen: %q\nstore_dir: %q\njetstream: enabled\n", s.Addr, s.dir) + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(s.dir, "nats.conf"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Start starts a server that was killed, with what it has stored.
func (s *Server) Start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if s.proc, err = child.Start(s.spec); err != nil {
		s.t.Fatal(err)
	}
	if err := s.proc.Poll(ctx, s.ready); err != nil {
		s.t.Fatalf("start NATS: %v; its log ends with:\n%s", err, child.Tail(s.spec.LogFile))
	}
}

// ready reports an error until the server says that it is ready. It has read its streams by then.
func (s *Server) ready(context.Context) error {
	if n := s.logged("Server is ready"); n == 0 || n < s.logged("Starting nats-server") {
		return errors.New("it is not ready")
	}
	return nil
}

// Create creates the stream of tests, or a changed one, with subjects.
func (s *Server) Create(cfg jetstream.StreamConfig) {
	s.t.Helper()
	if cfg.Name == "" {
		cfg.Name = Stream
	}
	s.ask(func(ctx context.Context) error {
		_, err := s.Admin.CreateOrUpdateStream(ctx, cfg)
		return err
	})
}

// Delete deletes a stream if there is one. It waits for the answer: a stream that is created while the server still
// deletes one of that name fails ("error creating store for stream").
func (s *Server) Delete(name string) {
	s.t.Helper()
	s.ask(func(ctx context.Context) error {
		if err := s.Admin.DeleteStream(ctx, name); !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
		return nil
	})
}

// Purge deletes all messages of the stream of tests.
func (s *Server) Purge() {
	s.t.Helper()
	s.ask(func(ctx context.Context) error {
		stream, err := s.Admin.Stream(ctx, Stream)
		if err != nil {
			return err
		}
		return stream.Purge(ctx)
	})
}

// Count returns the number of messages in the stream of tests.
func (s *Server) Count() (n int) {
	s.t.Helper()
	s.askFor(time.Second, func(ctx context.Context) error {
		stream, err := s.Admin.Stream(ctx, Stream)
		if err == nil {
			n = int(stream.CachedInfo().State.Msgs)
		}
		return err
	})
	return n
}

// Read returns the messages of the stream of tests with a sequence above the last one.
func (s *Server) Read(last int) (all []jetstream.Msg) {
	s.t.Helper()
	count := s.Count() // no test deletes messages
	if count == last {
		return nil
	}
	s.ask(func(ctx context.Context) error {
		consumer, err := s.Admin.OrderedConsumer(ctx, Stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(last + 1)})
		if err != nil {
			return err
		}
		messages, err := consumer.Messages()
		if err != nil {
			return err
		}
		defer messages.Stop()
		for all = nil; len(all) < count-last; {
			m, err := messages.Next()
			if err != nil {
				return err
			}
			all = append(all, m)
		}
		return nil
	})
	return all
}

// live ends what waits for the connection that was lost, and begins the life of the next one.
func (s *Server) live() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != nil {
		s.cut()
	}
	s.life, s.cut = context.WithCancel(context.Background())
}

// ask asks the server again if the connection was lost meanwhile: a kill may have taken the question or the answer
// with it. It does not ask again because an answer is late: the server might do both at once.
func (s *Server) ask(question func(context.Context) error) { s.askFor(patience, question) }

// askFor asks again as well if there is no answer in that time, or the servers of a cluster have no leader. The
// question must change nothing.
func (s *Server) askFor(answer time.Duration, question func(context.Context) error) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; {
		s.mu.Lock()
		life := s.life
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(life, answer)
		err := question(ctx)
		late := ctx.Err() != nil
		cancel()
		var api *jetstream.APIError
		lost := late || errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrNoResponders) ||
			errors.As(err, &api) && api.Code == http.StatusServiceUnavailable
		switch {
		case err == nil:
			return
		case !lost || time.Now().After(end):
			s.t.Error(err) // of any goroutine
			return
		}
	}
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.proc.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Reload has the server read another configuration.
func (s *Server) Reload(lines ...string) {
	s.t.Helper()
	const reloaded = "Reloaded server configuration"
	before := s.logged(reloaded)
	s.Configure(lines...)
	if err := s.proc.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.proc.Poll(ctx, func(context.Context) error {
		if s.logged(reloaded) == before {
			return errors.New("it has not read its configuration")
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// logged returns how often the server has logged a text.
func (s *Server) logged(text string) int {
	log, err := os.ReadFile(s.spec.LogFile)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count(string(log), text)
}

func (s *Server) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.proc != nil {
		_ = s.proc.Kill()
	}
	_ = os.RemoveAll(s.dir)
}

// tool returns the program.
func tool(ctx context.Context) (string, error) {
	dir, err := child.Fill(ctx, "nats-server-"+version, func(stage string) (string, error) {
		cmd := exec.Command("go", "install", module+"@"+version)
		cmd.Dir, cmd.Env = stage, append(os.Environ(), "GOBIN="+stage, "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build nats-server %s: %w; the output:\n%s", version, err, out)
		}
		return stage, nil
	})
	return filepath.Join(dir, "nats-server"), err
}
