package kafkatest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/internal/child"
)

// FakeOptions says what fake is wanted. The zero value is good.
type FakeOptions struct {
	// Dir is the folder of the fake: data and log. When it holds data already,
	// those are used. Empty makes a new folder, which Close removes; a folder
	// given here is kept.
	Dir string
	// Port to listen on; 0 finds a free one.
	Port int
	// Settings are broker settings, as kfake.BrokerConfigs takes them.
	Settings map[string]string
	// SyncWrites has every batch flushed to the disk. What was acked survives
	// Kill without it: kfake hands each batch to the kernel before it acks.
	SyncWrites bool
}

// Fake is kfake in a process of its own.
type Fake struct {
	node
	options FakeOptions
}

var _ Cluster = (*Fake)(nil)

// serveEnv tells a process that it is to be a fake, and which.
const serveEnv = "OUTBOXCDC_KAFKATEST_SERVE"

// serving says that MaybeServe was called. StartFake runs this very program
// again, and a program that does not come to MaybeServe would instead do all of
// its own work again, including StartFake, without end. What a program has
// done since its start is the one thing that only a global can know.
var serving atomic.Bool

// serveOptions go to the child through serveEnv.
type serveOptions struct {
	Port       int
	DataDir    string
	SyncWrites bool
	Settings   map[string]string
}

// MaybeServe must be called first thing in main, or in TestMain, of a program
// that calls StartFake. In the child that StartFake starts, it is the fake and
// never returns; otherwise it does nothing.
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
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(o.Port),
		kfake.DataDir(o.DataDir),
		kfake.BrokerConfigs(o.Settings),
		kfake.DefaultNumPartitions(1),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelWarn)),
	}
	if o.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	<-stop
	cluster.Close()
	return nil
}

// StartFake starts a fake and returns when it answers.
func StartFake(ctx context.Context, o FakeOptions) (*Fake, error) {
	if !serving.Load() {
		return nil, errors.New("start kfake: this program has to call kafkatest.MaybeServe first thing in main (or TestMain)")
	}
	f := &Fake{options: o}
	f.name = "kfake"
	f.spec = f.command
	if err := f.place(o.Dir, "outboxcdc-kfake-", o.Port); err != nil {
		f.removeDir()
		return nil, err
	}
	if err := f.StartAgain(ctx); err != nil {
		f.removeDir()
		return nil, err
	}
	return f, nil
}

// command is how the fake is started, each time.
func (f *Fake) command() child.Spec {
	self := "/proc/self/exe" // this program, also when its file was replaced
	if runtime.GOOS != "linux" {
		self, _ = os.Executable() // its error comes again when "" is started
	}
	raw, err := json.Marshal(serveOptions{
		Port:       f.port,
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
