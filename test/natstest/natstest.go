// Package natstest provides a real NATS server with JetStream to tests and to the demo. The server is a module of Go,
// which is built into the cache of fetched servers; the product does not depend on it.
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

// Node is a NATS server of our own on 127.0.0.1.
type Node struct {
	Addr  string
	Admin jetstream.JetStream // of a client that may do everything
	nc    *nats.Conn
	dir   string
	spec  child.Spec
	proc  *child.Process

	mu   sync.Mutex // guards the following
	life context.Context
	cut  context.CancelFunc // ends life
}

// Server is a node of a test. What fails on it fails the test.
type Server struct {
	*Node
	t testing.TB
}

// Open builds the server if it is not in the cache, and starts a node, with further lines of its configuration. login
// is what the administrator logs in with.
func Open(ctx context.Context, login []nats.Option, lines ...string) (*Node, error) {
	path, err := tool(ctx)
	if err != nil {
		return nil, err
	}
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	n := &Node{Addr: fmt.Sprintf("127.0.0.1:%d", port)}
	if n.dir, err = os.MkdirTemp("", "outboxcdc-nats-"); err != nil {
		return nil, err
	}
	n.spec = child.Spec{Path: path, Args: []string{"-c", filepath.Join(n.dir, "nats.conf")}, Env: os.Environ(), Dir: n.dir, LogFile: filepath.Join(n.dir, "log"), DeathSignal: syscall.SIGKILL}
	if err := errors.Join(n.configure(lines...), n.StartAgain(ctx), n.connect(login)); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) connect(login []nats.Option) (err error) {
	n.live()
	options := append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(patience),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { n.live() }),
	}, login...)
	if n.nc, err = nats.Connect("nats://"+n.Addr, options...); err != nil {
		return err
	}
	n.Admin, err = jetstream.New(n.nc)
	return err
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
	_, err := tool(ctx)
	child.Need(t, "NATS", err)
	n, err := Open(ctx, login, lines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return &Server{Node: n, t: t}
}

// Configure writes the configuration. It holds from the next start on.
func (s *Server) Configure(lines ...string) {
	s.t.Helper()
	if err := s.configure(lines...); err != nil {
		s.t.Fatal(err)
	}
}

func (n *Node) configure(lines ...string) error {
	text := fmt.Sprintf("listen: %q\nstore_dir: %q\njetstream: enabled\n", n.Addr, n.dir) + strings.Join(lines, "\n") + "\n"
	return os.WriteFile(filepath.Join(n.dir, "nats.conf"), []byte(text), 0o600)
}

// Start starts a server that was killed, with what it has stored.
func (s *Server) Start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.StartAgain(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// StartAgain starts a node that was killed, with what it has stored.
func (n *Node) StartAgain(ctx context.Context) (err error) {
	if n.proc, err = child.Start(n.spec); err != nil {
		return err
	}
	if err := n.proc.Poll(ctx, n.ready); err != nil {
		return fmt.Errorf("start NATS: %w; its log ends with:\n%s", err, child.Tail(n.spec.LogFile))
	}
	return nil
}

// ready reports an error until the server says that it is ready. It has read its streams by then.
func (n *Node) ready(context.Context) error {
	ready, err := n.logged("Server is ready")
	if err != nil {
		return err
	}
	if starts, err := n.logged("Starting nats-server"); err != nil || ready == 0 || ready < starts {
		return errors.Join(err, errors.New("it is not ready"))
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
	s.askFor(time.Second, func(ctx context.Context) (err error) {
		n, err = s.Node.Count(ctx)
		return err
	})
	return n
}

// Count returns the number of messages in the stream of tests.
func (n *Node) Count(ctx context.Context) (int, error) {
	stream, err := n.Admin.Stream(ctx, Stream)
	if err != nil {
		return 0, err
	}
	return int(stream.CachedInfo().State.Msgs), nil
}

// Read returns the messages of the stream of tests with a sequence above the last one.
func (s *Server) Read(last int) (all []jetstream.Msg) {
	s.t.Helper()
	count := s.Count() // no test deletes messages
	if count == last {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.Follow(ctx, uint64(last), func(m jetstream.Msg) {
		if all = append(all, m); len(all) == count-last {
			cancel()
		}
	})
	if len(all) < count-last {
		s.t.Errorf("read %d messages of %d: %v", len(all), count-last, err) // of any goroutine
		return all
	}
	return all[:count-last]
}

// Follow passes the messages of the stream of tests with a sequence above the last one to fn, in their order and as
// they arrive, until ctx is done. The server may be killed and started meanwhile. The error is the last one that was
// met.
func (n *Node) Follow(ctx context.Context, last uint64, fn func(jetstream.Msg)) (failed error) {
	for ctx.Err() == nil {
		n.mu.Lock()
		life := n.life
		n.mu.Unlock()
		while, cancel := context.WithCancel(ctx)
		unused := context.AfterFunc(life, cancel)
		if err := n.follow(while, &last, fn); ctx.Err() == nil {
			failed = err
			time.Sleep(20 * time.Millisecond) // until there is a connection again
		}
		unused()
		cancel()
	}
	return failed
}

// follow follows with one consumer, until something fails.
func (n *Node) follow(ctx context.Context, last *uint64, fn func(jetstream.Msg)) error {
	consumer, err := n.Admin.OrderedConsumer(ctx, Stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *last + 1})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		at, err := m.Metadata()
		if err != nil {
			return err
		}
		*last = at.Sequence.Stream
		fn(m)
	}
}

// live ends what waits for the connection that was lost, and begins the life of the next one.
func (n *Node) live() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut != nil {
		n.cut()
	}
	n.life, n.cut = context.WithCancel(context.Background())
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
	if err := s.Node.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the node with SIGKILL.
func (n *Node) Kill() error { return n.proc.Kill() }

// Reload has the server read another configuration.
func (s *Server) Reload(lines ...string) {
	s.t.Helper()
	const reloaded = "Reloaded server configuration"
	before, err := s.logged(reloaded)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Configure(lines...)
	if err := s.proc.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.proc.Poll(ctx, func(context.Context) error {
		if n, err := s.logged(reloaded); err != nil || n == before {
			return errors.Join(err, errors.New("it has not read its configuration"))
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// logged returns how often the server has logged a text.
func (n *Node) logged(text string) (int, error) {
	log, err := os.ReadFile(n.spec.LogFile)
	return strings.Count(string(log), text), err
}

// Close ends the node and removes its files.
func (n *Node) Close() error {
	if n.nc != nil {
		n.nc.Close()
	}
	if n.proc != nil {
		_ = n.proc.Kill()
	}
	return os.RemoveAll(n.dir)
}

// tool returns the program.
func tool(ctx context.Context) (string, error) {
	dir, err := child.Fill(ctx, "nats-server-"+version, func(stage string) (string, error) {
		cmd := exec.Command("go", "install", module+"@"+version)
		cmd.Dir, cmd.Env = stage, append(os.Environ(), "GOBIN="+stage, "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("there is no nats-server, and %s cannot be built (go install must reach a proxy of Go modules): %w; the output:\n%s", version, err, out)
		}
		return stage, nil
	})
	return filepath.Join(dir, "nats-server"), err
}
