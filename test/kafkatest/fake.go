package kafkatest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// FakeOptions are the options of StartFake. The zero value is valid.
type FakeOptions struct {
	// Dir is the folder of the fake: data and log. Existing data is used. Empty creates a new folder, which Close
	// removes; a folder given here is kept.
	Dir string
	// Port to listen on; 0 finds a free one.
	Port int
	// Brokers is the number of brokers, all in one process; 0 means one. Port is the first one's.
	Brokers int
	// AutoCreate creates a topic when a client's request allows it.
	AutoCreate bool
	// Settings are broker settings, as kfake.BrokerConfigs takes them.
	Settings map[string]string
	// SyncWrites flushes every batch to the disk. Acknowledged records survive Kill without it: kfake hands each batch
	// to the kernel before the ack.
	SyncWrites bool
}

// Fake is kfake in a process of its own. It can be told to misbehave as real brokers do at random (see [Fake.Inject]).
type Fake struct {
	node
	options FakeOptions
	ports   []int // of all brokers
	control int   // port of the control channel
}

var _ Cluster = (*Fake)(nil)

// serveEnv tells a process to be a fake, and holds its options.
const serveEnv = "OUTBOXCDC_KAFKATEST_SERVE"

// serving is true after MaybeServe was called. StartFake runs this very program again, and a program that does not call
// MaybeServe would do all of its own work again, including StartFake, without end. Only a global can know whether it
// was called.
var serving atomic.Bool

// serveOptions are passed to the child through serveEnv.
type serveOptions struct {
	Ports      []int
	Control    int
	AutoCreate bool
	DataDir    string
	SyncWrites bool
	Settings   map[string]string
}

// MaybeServe must be called first in main, or in TestMain, of a program that calls StartFake. In the child that
// StartFake starts, it runs the fake and never returns; otherwise it does nothing.
func MaybeServe() {
	serving.Store(true)
	raw := os.Getenv(serveEnv)
	if raw == "" {
		return
	}
	if err := serve(raw); err != nil {
		fmt.Fprintln(os.Stderr, "kafkatest: serve kfake:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(raw string) error {
	var o serveOptions
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		return fmt.Errorf("read %s: %w", serveEnv, err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	f := newFaults(len(o.Ports))
	opts := []kfake.Opt{
		kfake.Ports(o.Ports...),
		kfake.ListenFn(f.listen),
		kfake.DataDir(o.DataDir),
		kfake.BrokerConfigs(o.Settings),
		kfake.DefaultNumPartitions(1),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	}
	if o.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	if o.AutoCreate {
		opts = append(opts, kfake.AllowAutoTopicCreation())
	}
	// Before the brokers: once they answer, the control channel must exist too.
	control, err := net.Listen("tcp4", loopback(o.Control))
	if err != nil {
		return fmt.Errorf("open the control channel: %w", err)
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	f.serve(control, cluster)
	<-stop
	cluster.Close()
	return nil
}

// StartFake starts a fake and returns when it answers.
func StartFake(ctx context.Context, o FakeOptions) (*Fake, error) {
	if !serving.Load() {
		return nil, errors.New("start kfake: this program has to call kafkatest.MaybeServe first in main (or TestMain)")
	}
	f := &Fake{options: o}
	f.name = "kfake"
	f.spec = f.command
	if err := f.build(); err != nil {
		f.removeDir()
		return nil, err
	}
	if err := f.StartAgain(ctx); err != nil {
		f.removeDir()
		return nil, err
	}
	return f, nil
}

func (f *Fake) build() (err error) {
	if err := f.place(f.options.Dir, "outboxcdc-kfake-", f.options.Port); err != nil {
		return err
	}
	f.ports = []int{f.port}
	for len(f.ports) < f.options.Brokers {
		port, err := child.FreePort()
		if err != nil {
			return err
		}
		f.ports = append(f.ports, port)
	}
	f.control, err = child.FreePort()
	return err
}

// Brokers returns the addresses of all brokers.
func (f *Fake) Brokers() []string {
	all := make([]string, len(f.ports))
	for i, port := range f.ports {
		all[i] = loopback(port)
	}
	return all
}

// command returns how to start the fake, each time.
func (f *Fake) command() child.Spec {
	self := "/proc/self/exe" // this program, even when its file was replaced
	if runtime.GOOS != "linux" {
		self, _ = os.Executable() // starting "" reports the error
	}
	raw, err := json.Marshal(serveOptions{
		Ports:      f.ports,
		Control:    f.control,
		AutoCreate: f.options.AutoCreate,
		DataDir:    filepath.Join(f.dir, "data"),
		SyncWrites: f.options.SyncWrites,
		Settings:   f.options.Settings,
	})
	if err != nil {
		panic("kafkatest: internal error: " + err.Error()) // numbers and strings
	}
	return child.Spec{
		Path: self,
		Name: "outboxcdc-kfake",
		Env:  append(os.Environ(), serveEnv+"="+string(raw)),
	}
}
