package kafkatest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestExternalCluster(t *testing.T) {
	t.Setenv("OUTBOXCDC_TEST_KAFKA", "")
	if _, ok := FromEnv(); ok {
		t.Error("an empty variable names a cluster")
	}
	t.Setenv("OUTBOXCDC_TEST_KAFKA", "a:9092, b:9092")
	c, ok := FromEnv()
	if !ok || !slices.Equal(c.Brokers(), []string{"a:9092", "b:9092"}) {
		t.Errorf("FromEnv: %v, %v", c, ok)
	}
	if ForTest(t).Brokers()[0] != "a:9092" {
		t.Error("ForTest did not use the cluster of the environment")
	}
	ctx := context.Background()
	for name, err := range map[string]error{
		"Stop":       c.Stop(ctx),
		"Kill":       c.Kill(),
		"Freeze":     c.Freeze(ctx),
		"Thaw":       c.Thaw(),
		"StartAgain": c.StartAgain(ctx),
	} {
		if !errors.Is(err, ErrExternal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	ctx := context.Background()
	t.Setenv("JAVA_HOME", "")
	t.Setenv("OUTBOXCDC_CACHE", t.TempDir())
	path := t.TempDir()
	t.Setenv("PATH", path)
	if err := RealAvailable(); err == nil || !strings.Contains(err.Error(), "there is no java") {
		t.Errorf("without java: %v", err)
	}
	if _, err := StartReal(ctx, RealOptions{}); err == nil || !strings.Contains(err.Error(), "there is no java") {
		t.Errorf("without java: %v", err)
	}
	script(t, path+"/java", "exit 1")
	if err := RealAvailable(); err == nil || !strings.Contains(err.Error(), "there is no mvn") {
		t.Errorf("without mvn: %v", err)
	}
	script(t, path+"/mvn", "echo no way to Maven Central; exit 1")
	if err := RealAvailable(); err != nil {
		t.Errorf("with both: %v", err)
	}
	if _, err := StartReal(ctx, RealOptions{}); err == nil || !strings.Contains(err.Error(), "no way to Maven Central") {
		t.Errorf("when mvn fails: %v", err)
	}
}

// A program that forgot to call MaybeServe gets an error instead of starting itself again and again.
func TestMaybeServeIsAskedFor(t *testing.T) {
	serving.Store(false)
	defer serving.Store(true)
	if _, err := StartFake(context.Background(), FakeOptions{}); err == nil || !strings.Contains(err.Error(), "MaybeServe") {
		t.Errorf("StartFake without MaybeServe: %v", err)
	}
}

func TestBrokerThatCannotStart(t *testing.T) {
	ctx := t.Context()
	first := FakeForTest(t, FakeOptions{})
	if _, err := StartFake(ctx, FakeOptions{Port: first.port}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port in use: %v", err)
	}
}

// A folder given by the caller outlives Close and can be used again.
func TestGivenDirIsKept(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	first := FakeForTest(t, FakeOptions{Dir: dir, SyncWrites: true})
	must(t, CreateTopic(ctx, first.Brokers(), "kept", 1, nil))
	produce(t, ctx, producer(t, first), &kgo.Record{Topic: "kept", Value: []byte("v")})
	must(t, first.Close())

	second := FakeForTest(t, FakeOptions{Dir: dir})
	got, err := ReadAll(ctx, second.Brokers(), "kept")
	must(t, err)
	if v := values(got); v != "0/0:v" {
		t.Errorf("the second fake in the folder has %q", v)
	}
}

func script(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
}
