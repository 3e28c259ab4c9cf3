package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// node is one broker process, the common part of Real and Fake. Its methods are those of Cluster and may be called from
// several goroutines.
type node struct {
	name string // for messages
	port int
	dir  string
	made bool // dir was created by us, so Close removes it
	spec func() child.Spec

	mu     sync.Mutex
	proc   *child.Process // nil before the first start
	frozen bool
	closed bool
}

// place sets the node's folder and port, and creates what was not given.
func (n *node) place(dir, temp string, port int) (err error) {
	n.port = port
	if n.port == 0 {
		if n.port, err = child.FreePort(); err != nil {
			return err
		}
	}
	if dir == "" {
		n.dir, err = os.MkdirTemp("", temp)
		n.made = true
	} else if n.dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(n.dir, 0o755)
	}
	if err != nil {
		return fmt.Errorf("create the folder of %s: %w", n.name, err)
	}
	return nil
}

func (n *node) address() string { return "127.0.0.1:" + strconv.Itoa(n.port) }

func (n *node) Brokers() []string { return []string{n.address()} }

func (n *node) LogFile() string { return filepath.Join(n.dir, "broker.log") }

func (n *node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return 0
	}
	return n.proc.Pid()
}

func (n *node) running() bool { return n.proc != nil && !n.proc.Exited() }

func (n *node) StartAgain(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return fmt.Errorf("start %s: it was closed", n.name)
	case n.running():
		return fmt.Errorf("start %s: it is running", n.name)
	}
	if err := child.CheckPort(n.port); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	spec := n.spec()
	spec.Dir, spec.LogFile, spec.DeathSignal = n.dir, n.LogFile(), syscall.SIGKILL
	proc, err := child.Start(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	if err := proc.Poll(ctx, n.ping); err != nil {
		_ = proc.Kill()
		return fmt.Errorf("start %s on port %d: %w; its log ends with:\n%s", n.name, n.port, err, child.Tail(n.LogFile()))
	}
	n.proc, n.frozen = proc, false
	return nil
}

// ping succeeds when the broker answers a metadata request and lists itself among the brokers: a real one listens some
// time before that, and cannot create topics yet.
func (n *node) ping(ctx context.Context) error {
	// A plain connection first: a Kafka client needs long to give up.
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp4", n.address())
	if err != nil {
		return err
	}
	conn.Close()
	client, err := newClient(n.Brokers())
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if len(resp.Brokers) == 0 {
		return errors.New("it reports no live broker yet")
	}
	return nil
}

func (n *node) Stop(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return nil
	}
	if err := n.thaw(); err != nil { // a frozen process keeps SIGTERM pending
		return err
	}
	if err := n.proc.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", n.name, err)
	}
	if err := n.proc.Wait(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", n.name, err)
	}
	return nil
}

func (n *node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return nil
	}
	if err := n.proc.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", n.name, err)
	}
	n.frozen = false
	return nil
}

func (n *node) Freeze(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return fmt.Errorf("freeze %s: it is not running", n.name)
	}
	if err := n.proc.Freeze(ctx); err != nil {
		return fmt.Errorf("freeze %s: %w", n.name, err)
	}
	n.frozen = true
	return nil
}

func (n *node) Thaw() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running() {
		return fmt.Errorf("thaw %s: it is not running", n.name)
	}
	return n.thaw()
}

func (n *node) thaw() error {
	if !n.frozen {
		return nil
	}
	if err := n.proc.Thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", n.name, err)
	}
	n.frozen = false
	return nil
}

func (n *node) Close() error {
	err := n.Kill()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	n.removeDir()
	return err
}

func (n *node) removeDir() {
	if n.made && n.dir != "" {
		_ = os.RemoveAll(n.dir)
	}
}

// newClient returns a client that gives up and retries sooner than one for production: its brokers come and go.
func newClient(brokers []string, opts ...kgo.Opt) (*kgo.Client, error) {
	all := append([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.DialTimeout(2 * time.Second),
		kgo.RequestTimeoutOverhead(3 * time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
	}, opts...)
	client, err := kgo.NewClient(all...)
	if err != nil {
		return nil, fmt.Errorf("create a Kafka client for %v: %w", brokers, err)
	}
	return client, nil
}
