// Package rabbittest provides a real RabbitMQ to tests: Debian's packages of the server and of Erlang, which are
// unpacked into the cache of fetched servers and not installed, so that no service starts.
package rabbittest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/debian"
)

// Users of a server. The second one may write only to exchanges whose name begins with "allowed".
const (
	User, Password        = "shop", "s3cret-shop"
	Limited, LimitedsWord = "limited", "s3cret-limited"
)

// erlang are the packages that the server needs besides its own.
var erlang = []string{
	"erlang-base", "erlang-crypto", "erlang-asn1", "erlang-public-key", "erlang-ssl", "erlang-mnesia", "erlang-os-mon", "erlang-inets",
	"erlang-runtime-tools", "erlang-syntax-tools", "erlang-tools", "erlang-parsetools", "erlang-xmerl", "erlang-eldap",
}

// Server is a node of its own: its ports, its folder and its Erlang port mapper belong to it.
type Server struct {
	Port int

	t       testing.TB
	dir     string
	root    string // of the unpacked packages
	dist    int
	epmd    int
	node    *child.Process
	mapper  *child.Process
	erlBin  string
	plugins string
}

// patience is the time after which a start is given up. Nothing is measured by it.
const patience = 5 * time.Minute

// Available returns nil when the server's packages can be unpacked here.
func Available(ctx context.Context) error {
	_, err := debian.Unpack(ctx, "rabbitmq-server", erlang...)
	return err
}

// Start starts a server that ends with the test. Without the packages the test is skipped; with CI=true it fails.
func Start(t testing.TB) *Server {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	child.Need(t, "RABBITMQ", Available(ctx))
	s, err := Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.t = t
	return s
}

// Open starts a server in a folder, for a program that is no test. Its methods Run and Stop are for tests.
func Open(ctx context.Context, dir string) (s *Server, err error) {
	root, err := debian.Unpack(ctx, "rabbitmq-server", erlang...)
	if err != nil {
		return nil, err
	}
	s = &Server{dir: dir, root: root}
	if s.erlBin, err = only(root, "usr/lib/erlang/erts-*/bin"); err == nil {
		s.plugins, err = only(root, "usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins")
	}
	for _, port := range []*int{&s.Port, &s.dist, &s.epmd} {
		if err == nil {
			*port, err = child.FreePort()
		}
	}
	if err != nil {
		return nil, err
	}
	users := map[string]any{
		"users":       []any{map[string]any{"name": User, "password": Password, "tags": ""}, map[string]any{"name": Limited, "password": LimitedsWord, "tags": ""}},
		"vhosts":      []any{map[string]any{"name": "/"}},
		"permissions": []any{permission(User, ".*", ".*"), permission(Limited, "^$", "^allowed")},
	}
	text, err := json.Marshal(users)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.write("users.json", string(text)), s.write("plugins", "[]."), s.write("env.conf", "")); err != nil {
		return nil, err
	}
	s.mapper, err = child.Start(child.Spec{
		Path: filepath.Join(s.erlBin, "epmd"), Args: []string{"-port", fmt.Sprint(s.epmd)}, Env: s.env(), Dir: s.dir, LogFile: s.log(), DeathSignal: syscall.SIGKILL,
	})
	if err != nil {
		return nil, err
	}
	if err := s.run(nil); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the server and its port mapper.
func (s *Server) Close() {
	s.Kill()
	_ = s.mapper.Kill()
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

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

func (s *Server) write(name, text string) error {
	return os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)
}

func (s *Server) env() []string {
	at := func(name string) string { return filepath.Join(s.dir, name) }
	return []string{
		"HOME=" + s.dir, "LANG=C.UTF-8", "PATH=" + s.erlBin + ":" + os.Getenv("PATH"),
		"ROOTDIR=" + filepath.Join(s.root, "usr/lib/erlang"), "BINDIR=" + s.erlBin, "EMU=beam", "PROGNAME=erl", "ERL_LIBS=" + s.plugins,
		fmt.Sprint("ERL_EPMD_PORT=", s.epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_HOME=" + filepath.Dir(s.plugins), "RABBITMQ_PLUGINS_DIR=" + s.plugins, fmt.Sprintf("RABBITMQ_NODENAME=test%d@localhost", s.Port), fmt.Sprint("RABBITMQ_DIST_PORT=", s.dist),
		"RABBITMQ_MNESIA_BASE=" + at("mnesia"), "RABBITMQ_LOG_BASE=" + at("logs"), "RABBITMQ_LOGS=-", "RABBITMQ_CONFIG_FILE=" + at("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + at("advanced.config"), "RABBITMQ_ENABLED_PLUGINS_FILE=" + at("plugins"), "RABBITMQ_CONF_ENV_FILE=" + at("env.conf"),
		"RABBITMQ_PID_FILE=" + at("pid"), "RABBITMQ_FEATURE_FLAGS_FILE=" + at("flags"), "RABBITMQ_QUORUM_DIR=" + at("quorum"),
	}
}

// Run starts the server again after Kill, with further lines of its configuration, and waits until it accepts users.
func (s *Server) Run(conf ...string) {
	s.t.Helper()
	if err := s.run(conf); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) run(conf []string) error {
	text := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nload_definitions = %s\nlog.console.level = warning\n", s.Port, filepath.Join(s.dir, "users.json"))
	for _, line := range conf {
		text += line + "\n"
	}
	if err := s.write("rabbitmq.conf", text); err != nil {
		return err
	}
	args := []string{
		"-noinput", "-s", "rabbit", "boot", "-boot", filepath.Join(s.root, "usr/lib/erlang/bin/start_sasl"), "+W", "w", "+S", "2:2", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
		"-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false", "-kernel", "prevent_overlapping_partitions", "false",
	}
	var err error
	s.node, err = child.Start(child.Spec{Path: filepath.Join(s.erlBin, "erlexec"), Args: args, Env: s.env(), Dir: s.dir, LogFile: s.log(), DeathSignal: syscall.SIGKILL})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = s.node.Poll(ctx, func(context.Context) error {
		c, err := amqp.Dial(s.URL(User, Password))
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("start RabbitMQ: %w; its log ends with:\n%s", err, child.Tail(s.log()))
	}
	return nil
}

// Kill ends the server at once, as kill -9 does.
func (s *Server) Kill() {
	if s.node != nil {
		_ = s.node.Kill()
	}
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
func (s *Server) CPUTime() time.Duration { return s.node.CPUTime() }

// URL is the server's address for a user.
func (s *Server) URL(user, password string) string {
	return fmt.Sprintf("amqp://%s:%s@127.0.0.1:%d/", user, password, s.Port)
}

// Do runs f with a channel of its own.
func (s *Server) Do(f func(ch *amqp.Channel) error) error {
	c, err := amqp.Dial(s.URL(User, Password))
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
