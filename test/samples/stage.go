package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const (
	role     = "outboxcdc" // the daemon's; setup creates it
	app      = "shop"      // the producer's role, and the consumer's
	password = "sample"
)

// stage has the servers that several samples share. A field is nil until its server was started.
type stage struct {
	dir, binary, samples string
	postgres             *pgtest.Server
	kafka                kafkatest.Cluster
}

// openStage starts the servers. Call close on its result, also after an error.
func openStage(ctx context.Context, binary string, withKafka bool) (*stage, error) {
	st := &stage{binary: binary}
	root, err := daemon.ModuleRoot()
	if err != nil {
		return st, err
	}
	st.samples = filepath.Join(root, "samples")
	if st.dir, err = os.MkdirTemp("", "outboxcdc-samples-"); err != nil {
		return st, err
	}
	// PostgreSQL refuses root and runs as another user, who must be able to reach its data.
	if err := os.Chmod(st.dir, 0o755); err != nil {
		return st, err
	}
	if binary == "" {
		st.binary = filepath.Join(st.dir, "outboxcdc")
		if err := daemon.Build(ctx, st.binary); err != nil {
			return st, err
		}
	} else if st.binary, err = filepath.Abs(binary); err != nil {
		return st, err
	}
	st.postgres, err = pgtest.Start(ctx, pgtest.Options{
		Major: "18", Dir: filepath.Join(st.dir, "postgres"), Settings: map[string]string{"max_replication_slots": "100"}, // one for each sample
	})
	if err != nil {
		return st, err
	}
	// setup apply leaves an existing role as it is.
	err = st.postgres.Exec(ctx, "postgres",
		"CREATE ROLE "+app+" LOGIN PASSWORD '"+password+"'", "CREATE ROLE "+role+" LOGIN REPLICATION PASSWORD '"+password+"'")
	if err != nil || !withKafka {
		return st, err
	}
	kafka, err := startKafka(ctx, filepath.Join(st.dir, "kafka"))
	if err == nil {
		st.kafka = kafka
	}
	return st, err
}

// startKafka starts a real Kafka, or kfake if there is no Java or OUTBOXCDC_TEST_FAKE_KAFKA is set.
func startKafka(ctx context.Context, dir string) (kafkatest.Cluster, error) {
	missing := kafkatest.RealAvailable()
	if os.Getenv("OUTBOXCDC_TEST_FAKE_KAFKA") != "" {
		missing = errors.New("OUTBOXCDC_TEST_FAKE_KAFKA is set")
	}
	if missing == nil {
		fmt.Println("samples: the broker is Kafka " + kafkatest.RealVersion)
		return kafkatest.StartReal(ctx, kafkatest.RealOptions{Dir: dir, QuickStart: true})
	}
	fmt.Printf("samples: NO REAL KAFKA, the broker is kfake, which imitates it: %v\n", missing)
	return kafkatest.StartFake(ctx, kafkatest.FakeOptions{Dir: dir})
}

// close ends the servers. The logs stay if keep is set.
func (st *stage) close(keep bool) error {
	var errs []error
	if st.kafka != nil {
		errs = append(errs, st.kafka.Close())
	}
	if st.postgres != nil {
		errs = append(errs, st.postgres.Close())
	}
	if keep && st.dir != "" {
		for _, data := range []string{"postgres/data", "kafka/data"} {
			errs = append(errs, os.RemoveAll(filepath.Join(st.dir, data)))
		}
		fmt.Println("samples: logs are in " + st.dir)
	} else if st.dir != "" {
		errs = append(errs, os.RemoveAll(st.dir))
	}
	return errors.Join(errs...)
}

// start starts a program with its log in the sample's folder.
func start(dir, name string, env []string, command ...string) (*child.Process, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, err
	}
	return child.Start(child.Spec{
		Path: path, Args: command[1:], Env: daemon.Environment(env...), Dir: dir,
		LogFile: filepath.Join(dir, name+".log"), DeathSignal: syscall.SIGKILL,
	})
}
