package kafkatest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// What a first broker leaves in the cache for all later ones. Without it each start costs three times the processor
// time, most of which loads and verifies classes.
const (
	classArchive = "classes.jsa"     // Java's archive of loaded classes; Java ignores one of another Java, or of other jars
	formatted    = "data"            // a data directory as the tool formats it, without its identity
	identity     = "meta.properties" // of a data directory
)

// prepare returns the folder of the two, and starts the first broker if needed.
func (r *Real) prepare(ctx context.Context) (dir string, err error) {
	java, err := filepath.EvalSymlinks(r.java)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(java)
	if err != nil {
		return "", err
	}
	id := sha256.Sum256(fmt.Append(nil, java, info.Size(), info.ModTime().Unix()))
	return child.Fill(ctx, fmt.Sprintf("%s-first-%x", filepath.Base(r.jars), id[:4]), func(stage string) (string, error) {
		// child.Fill continues when ctx has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		out := filepath.Join(stage, "prepared")
		if err := os.Mkdir(out, 0o755); err != nil {
			return "", err
		}
		first := &Real{java: r.java, jars: r.jars, options: RealOptions{QuickStart: true}}
		first.name, first.archive = r.name, "-XX:ArchiveClassesAtExit="+filepath.Join(out, classArchive)
		first.spec = first.command
		err := first.place(filepath.Join(stage, "broker"), "", 0)
		if err == nil {
			first.options.member, err = singleMember()
		}
		if err == nil {
			err = first.writeProperties()
		}
		if err == nil {
			err = first.format(ctx)
		}
		if err == nil {
			err = os.CopyFS(filepath.Join(out, formatted), os.DirFS(first.dataDir()))
		}
		if err == nil {
			err = os.Remove(filepath.Join(out, formatted, identity))
		}
		if err == nil {
			err = first.StartAgain(ctx)
		}
		if err == nil {
			err = errors.Join(first.warm(ctx), first.Stop(ctx))
		}
		return out, err
	})
}

// format formats the data directory as Kafka's tool does.
func (r *Real) format(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, r.java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-cp", filepath.Join(r.jars, "*"), "kafka.tools.StorageTool",
		"format", "-t", r.options.member.cluster, "-c", r.properties())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format the data directory: %w; its output:\n%s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// warm has the broker load the classes that transactions and consumer groups need.
func (r *Real) warm(ctx context.Context) error {
	const topic = "warm"
	if err := CreateTopic(ctx, r.Brokers(), topic, 1, nil); err != nil {
		return err
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers()...), kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer producer.Close()
	err = producer.BeginTransaction()
	if err == nil {
		err = producer.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr()
	}
	if err = errors.Join(err, producer.EndTransaction(ctx, kgo.TryCommit)); err != nil {
		return err
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(r.Brokers()...), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic))
	if err != nil {
		return err
	}
	defer consumer.Close()
	if err := consumer.PollFetches(ctx).Err(); err != nil {
		return err
	}
	return consumer.CommitUncommittedOffsets(ctx)
}

// usePrepared formats the data directory from what the first broker has left, and makes Java use its archive.
func (r *Real) usePrepared(ctx context.Context) error {
	from, err := r.prepare(ctx)
	if err != nil {
		return fmt.Errorf("start a first broker: %w", err)
	}
	if file := filepath.Join(from, classArchive); exists(file) { // not every Java writes one
		r.archive = "-XX:SharedArchiveFile=" + file
	}
	own := filepath.Join(r.dataDir(), identity)
	if exists(own) {
		return nil
	}
	if err = os.CopyFS(r.dataDir(), os.DirFS(filepath.Join(from, formatted))); err == nil {
		var id [16]byte
		_, _ = rand.Read(id[:]) // never fails
		err = os.WriteFile(own, fmt.Appendf(nil, "version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n",
			r.options.member.cluster, r.options.member.id, base64.RawURLEncoding.EncodeToString(id[:])), 0o644)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
