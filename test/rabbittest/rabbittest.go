// Package rabbittest provides a real RabbitMQ to tests and to the demo: Debian's packages of the server and of Erlang.
// If they are not installed, they are unpacked into the cache of fetched servers, so that no service starts.
package rabbittest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debian"
)

// Users of a server. The second one may write only to exchanges whose name begins with "allowed". The third one may
// open no channel.
const (
	User, Password        = "shop", "s3cret-shop"
	Limited, LimitedsWord = "limited", "s3cret-limited"
	Crowded, CrowdedsWord = "crowded", "s3cret-crowded"
)

// Full is a virtual host that takes no connection.
const Full = "full"

// Folders of the packages, below their root.
const (
	erlang  = "usr/lib/erlang/erts-*/bin"
	plugins = "usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins"
)

// erlangPackages are what the server needs besides its own package.
var erlangPackages = []string{
	"erlang-base", "erlang-crypto", "erlang-asn1", "erlang-public-key", "erlang-ssl", "erlang-mnesia", "erlang-os-mon", "erlang-inets",
	"erlang-runtime-tools", "erlang-syntax-tools", "erlang-tools", "erlang-parsetools", "erlang-xmerl", "erlang-eldap",
}

// Node is a RabbitMQ of our own: its ports, its folder and its Erlang port mapper belong to it.
type Node struct {
	Port int

	dir     string
	root    string // of the packages
	dist    int
	epmd    int
	node    *child.Process
	mapper  *child.Process
	erlBin  string
	plugins string
}

// Server is a node of a test. What fails on it fails the test.
type Server struct {
	*Node
	t testing.TB
}

// patience is the time after which a start is given up. Nothing is measured by it.
const patience = 5 * time.Minute

// Available returns nil when a server can run here.
func Available(ctx context.Context) error {
	_, err := packages(ctx)
	return err
}

// Open finds the packages, or fetches them, and starts a node, whose files are in a folder.
func Open(ctx context.Context, dir string) (*Node, error) {
	n := &Node{dir: dir}
	if err := n.open(ctx); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) (err error) {
	if n.root, err = packages(ctx); err != nil {
		return err
	}
	if n.erlBin, err = only(n.root, erlang); err != nil {
		return err
	}
	if n.plugins, err = only(n.root, plugins); err != nil {
		return err
	}
	for _, port := range []*int{&n.Port, &n.dist, &n.epmd} {
		if *port, err = child.FreePort(); err != nil {
			return err
		}
	}
	users := map[string]any{
		"users": []any{
			map[string]any{"name": User, "password": Password, "tags": ""},
			map[string]any{"name": Limited, "password": LimitedsWord, "tags": ""},
			map[string]any{"name": Crowded, "password": CrowdedsWord, "tags": "", "limits": map[string]any{"max-channels": 0}},
		},
		"vhosts":      []any{map[string]any{"name": "/"}, map[string]any{"name": Full}},
		"parameters":  []any{map[string]any{"component": "vhost-limits", "name": "limits", "vhost": Full, "value": map[string]any{"max-connections": 0}}},
		"permissions": []any{permission(User, ".*", ".*"), permission(Limited, "^$", "^allowed"), permission(Crowded, "^$", ".*")},
	}
	text, err := json.Marshal(users)
	if err != nil {
		return err
	}
	if err := errors.Join(n.write("users.json", string(text)), n.write("plugins", "[]."), n.write("env.conf", ""), n.configure()); err != nil {
		return err
	}
	n.mapper, err = child.Start(child.Spec{
		Path: filepath.Join(n.erlBin, "epmd"), Args: []string{"-port", fmt.Sprint(n.epmd)}, Env: n.env(), Dir: n.dir, LogFile: n.log(), DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	return n.StartAgain(ctx)
}

// packages returns the root of the packages' files: "/" if they are installed.
func packages(ctx context.Context) (string, error) {
	_, noErlang := only("/", erlang)
	if _, err := only("/", plugins); err == nil && noErlang == nil {
		return "/", nil
	}
	root, err := debian.Unpack(ctx, "rabbitmq-server", erlangPackages...)
	if err != nil {
		return "", fmt.Errorf("there is no RabbitMQ, and Debian's cannot be fetched (install rabbitmq-server, or let apt-get reach its archive): %w", err)
	}
	return root, nil
}

// Start runs a server until the end of the test. Without the packages the test is skipped; with CI=true it fails.
func Start(t testing.TB) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	child.Need(t, "RABBITMQ", Available(ctx))
	n, err := Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("RabbitMQ's log since its last start:\n%s", n.lastRun())
		}
		_ = n.Close()
	})
	return &Server{Node: n, t: t}
}

func permission(user, configure, write string) map[string]any {
	return map[string]any{"user": user, "vhost": "/", "configure": configure, "write": write, "read": configure}
}

func only(root, pattern string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(root, pattern))
	if len(found) != 1 {
		return "", fmt.Errorf("%d folders %s in %s", len(found), pattern, root)
	}
	return found[0], nil
}

func (n *Node) log() string { return filepath.Join(n.dir, "log") }

// lastRun is the log since the last start, without the steps of the start that say nothing: it has which queues were
// recovered, and how long that took.
func (n *Node) lastRun() string {
	log, err := os.ReadFile(n.log())
	if err != nil {
		return err.Error()
	}
	at := max(0, strings.LastIndex(string(log), "Starting RabbitMQ"))
	var b strings.Builder
	for line := range strings.Lines(string(log[at:])) {
		if !strings.Contains(line, "Running boot step") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func (n *Node) write(name, text string) error {
	return os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600)
}

func (n *Node) env() []string {
	at := func(name string) string { return filepath.Join(n.dir, name) }
	return []string{
		"HOME=" + n.dir, "LANG=C.UTF-8", "PATH=" + n.erlBin + ":" + os.Getenv("PATH"),
		"ROOTDIR=" + filepath.Join(n.root, "usr/lib/erlang"), "BINDIR=" + n.erlBin, "EMU=beam", "PROGNAME=erl", "ERL_LIBS=" + n.plugins,
		fmt.Sprint("ERL_EPMD_PORT=", n.epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_HOME=" + filepath.Dir(n.plugins), "RABBITMQ_PLUGINS_DIR=" + n.plugins, fmt.Sprintf("RABBITMQ_NODENAME=test%d@localhost", n.Port), fmt.Sprint("RABBITMQ_DIST_PORT=", n.dist),
		"RABBITMQ_MNESIA_BASE=" + at("mnesia"), "RABBITMQ_LOG_BASE=" + at("logs"), "RABBITMQ_LOGS=-", "RABBITMQ_CONFIG_FILE=" + at("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + at("advanced.config"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + at("plugins"), "RABBITMQ_CONF_ENV_FILE=" + at("env.conf"),
		"RABBITMQ_PID_FILE=" + at("pid"), "RABBITMQ_FEATURE_FLAGS_FILE=" + at("flags"), "RABBITMQ_QUORUM_DIR=" + at("quorum"),
	}
}

// Run starts the server again after Kill, with further lines of its configuration, and waits until it accepts users.
func (s *Server) Run(conf ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := errors.Join(s.configure(conf...), s.StartAgain(ctx)); err != nil {
		s.t.Fatal(err)
	}
}

func (n *Node) configure(conf ...string) error {
	text := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nload_definitions = %s\nlog.console.level = info\nlog.connection.level = warning\n", n.Port, filepath.Join(n.dir, "users.json"))
	for _, line := range conf {
		text += line + "\n"
	}
	return n.write("rabbitmq.conf", text)
}

// StartAgain starts a node that has ended, with what it has stored, and returns when it accepts users.
func (n *Node) StartAgain(ctx context.Context) (err error) {
	args := []string{
		"-noinput", "-s", "rabbit", "boot", "-boot", filepath.Join(n.root, "usr/lib/erlang/bin/start_sasl"), "+W", "w", "+S", "2:2", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
		"-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false", "-kernel", "prevent_overlapping_partitions", "false",
	}
	n.node, err = child.Start(child.Spec{Path: filepath.Join(n.erlBin, "erlexec"), Args: args, Env: n.env(), Dir: n.dir, LogFile: n.log(), DeathSignal: syscall.SIGKILL})
	if err != nil {
		return err
	}
	err = n.node.Poll(ctx, func(context.Context) error {
		c, err := amqp.Dial(n.URL(User, Password))
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("start RabbitMQ: %w; its log ends with:\n%s", err, child.Tail(n.log()))
	}
	return nil
}

// Kill ends the server at once, as kill -9 does.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.Node.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the node at once, as kill -9 does.
func (n *Node) Kill() error {
	if n.node == nil {
		return nil
	}
	return n.node.Kill()
}

// Close ends the node and its port mapper.
func (n *Node) Close() error {
	err := n.Kill()
	if n.mapper != nil {
		err = errors.Join(err, n.mapper.Kill())
	}
	return err
}

// Stop ends the server as its administrator does.
func (s *Server) Stop() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.node.Signal(syscall.SIGTERM)
	if err := s.node.Wait(ctx); err != nil {
		s.t.Fatalf("RabbitMQ has not stopped: %v", err)
	}
}

// CPUTime returns the processor time of the server, which has ended.
func (n *Node) CPUTime() time.Duration { return n.node.CPUTime() }

// URL is the server's address for a user.
func (n *Node) URL(user, password string) string {
	return fmt.Sprintf("amqp://%s:%s@127.0.0.1:%d/", user, password, n.Port)
}

// Do runs f with a channel of its own.
func (n *Node) Do(f func(ch *amqp.Channel) error) error {
	c, err := amqp.Dial(n.URL(User, Password))
	if err != nil {
		return err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// Declare makes an exchange with a durable queue of a type, which has the type as its name and gets all messages.
func Declare(ch *amqp.Channel, exchange, kind string) error {
	_, err := ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind})
	return errors.Join(ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil), err, ch.QueueBind(kind, "", exchange, false, nil))
}

// Count returns the number of messages that a queue has and no consumer has got.
func (n *Node) Count(queue string) (count int, err error) {
	err = n.Do(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		count = q.Messages
		return err
	})
	return count, err
}

// Drain passes the messages of a queue to fn, in their order, until it is empty. They are acknowledged when fn has
// returned; if it fails, the end of the channel puts them back.
func Drain(ch *amqp.Channel, queue string, fn func(amqp.Delivery) error) error {
	const consumer = "drain"
	for {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n := min(q.Messages, 1000)
		if err != nil || n == 0 {
			return err
		}
		if err := ch.Qos(n, 0, false); err != nil { // so many come, and none that is not waited for
			return err
		}
		messages, err := ch.Consume(queue, consumer, false, false, false, false, nil)
		if err != nil {
			return err
		}
		var last amqp.Delivery
		for range n {
			var open bool
			if last, open = <-messages; !open {
				return errors.New("the broker has ended the consumer")
			}
			if err := fn(last); err != nil {
				return err
			}
		}
		if err := errors.Join(ch.Cancel(consumer, false), last.Ack(true)); err != nil {
			return err
		}
	}
}
