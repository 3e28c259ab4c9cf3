package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/rabbittest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// language is a sample: the programs of a folder of samples/, with Kafka or another broker.
type language struct {
	name  string
	tools []string // programs that must be on the PATH
	probe []string // a command that must succeed; nil: none
	hint  string   // how to install them on Debian
	// prepare installs the dependencies with the language's own client, and returns how to run the programs. dir is a
	// copy of the sample's folder.
	prepare func(ctx context.Context, dir string) (commands, error)
	// databaseURL converts a URL for the language's driver; nil keeps it.
	databaseURL func(string) string
	// play is what happens to the sample, and tables creates those of the consumer; nil: as to every language.
	play   func(*sample, context.Context) (string, error)
	tables func(*sample, context.Context) error
	effect string  // the query of the effects; "": the ledger
	server *server // the broker; nil: Kafka
}

// server is a broker other than Kafka. Python reads from all of them.
type server struct {
	available func(context.Context) error // nil when it can run here
	topic     string                      // of the orders
	open      func(ctx context.Context, dir, topic, group string) (broker, error)
}

// commands start the programs: arguments are appended.
type commands struct{ producer, consumer []string }

// missing returns an error that names what is missing.
func (l language) missing(ctx context.Context) error {
	var names []string
	for _, tool := range l.tools {
		if _, err := exec.LookPath(tool); err != nil {
			names = append(names, tool)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("there is no %s (apt-get install %s)", strings.Join(names, ", no "), l.hint)
	}
	if l.probe != nil {
		if err := execute("", nil, l.probe[0], l.probe[1:]...); err != nil {
			return fmt.Errorf("%w (apt-get install %s)", err, l.hint)
		}
	}
	if l.server != nil {
		return l.server.available(ctx)
	}
	return nil
}

var languages = []language{
	{name: "sql", prepare: prepareSQL},
	python("python", nil),
	python("rabbitmq", &server{rabbittest.Available, "orders", openRabbit}),
	python("redis", &server{redistest.Available, "orders", openRedis}),
	python("sqs", &server{func(context.Context) error { return sqstest.Available() }, "orders.fifo", openSQS}),
	{name: "node", tools: []string{"node", "npm"}, hint: "nodejs npm", prepare: prepareNode},
	{
		name: "java", tools: []string{"java", "javac", "mvn"}, hint: "openjdk-17-jdk-headless maven",
		prepare: prepareJava, databaseURL: jdbcURL,
	},
	{
		name: "tasks", tools: []string{"go"}, hint: "golang", prepare: prepareTasks, play: (*sample).playTasks, tables: (*sample).migrateTasks,
		effect: "SELECT order_id, amount FROM reports",
	},
	{name: "rust", tools: []string{"cargo", "cc", "make"}, hint: "cargo gcc make", prepare: prepareRust},
}

// python is the sample of a broker.
func python(name string, server *server) language {
	l := language{
		name: name, tools: []string{"python3"}, probe: []string{"python3", "-c", "import ensurepip"}, hint: "python3-venv", server: server,
	}
	program := "consumer.py"
	if server != nil {
		program, l.play = "consumer_"+name+".py", (*sample).playBroker
	}
	l.prepare = func(ctx context.Context, dir string) (commands, error) { return preparePython(ctx, dir, program) }
	return l
}

// folder is that of the programs.
func (l language) folder() string {
	if l.server != nil {
		return "python"
	}
	return l.name
}

func prepareSQL(_ context.Context, dir string) (commands, error) {
	self, err := os.Executable()
	if err != nil {
		return commands{}, err
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	return commands{
		producer: []string{self, sqlProduce, file("produce.sql"), file("produce_emit.sql")},
		consumer: []string{self, sqlConsume, file("consume.sql")},
	}, nil
}

func preparePython(ctx context.Context, dir, consumer string) (commands, error) {
	requirements := filepath.Join(dir, "requirements.txt")
	venv, err := fill(ctx, "python", requirements, func(stage string) (string, error) {
		venv := filepath.Join(stage, "venv")
		if err := execute(stage, nil, "python3", "-m", "venv", venv); err != nil {
			return "", err
		}
		return venv, execute(stage, nil, filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--requirement", requirements)
	})
	python := filepath.Join(venv, "bin", "python")
	return commands{
		producer: []string{python, filepath.Join(dir, "producer.py")},
		consumer: []string{python, filepath.Join(dir, consumer)},
	}, err
}

func prepareNode(ctx context.Context, dir string) (commands, error) {
	lock := filepath.Join(dir, "package-lock.json")
	cache, err := fill(ctx, "node", lock, func(stage string) (string, error) {
		installed := filepath.Join(stage, "installed")
		for _, name := range []string{"package.json", "package-lock.json"} {
			if err := copyFile(filepath.Join(installed, name), filepath.Join(dir, name)); err != nil {
				return "", err
			}
		}
		return installed, execute(installed, nil, "npm", "ci", "--no-audit", "--no-fund")
	})
	if err != nil {
		return commands{}, err
	}
	return commands{
		producer: []string{"node", filepath.Join(dir, "producer.js")},
		consumer: []string{"node", filepath.Join(dir, "consumer.js")},
	}, os.Symlink(filepath.Join(cache, "node_modules"), filepath.Join(dir, "node_modules"))
}

func prepareJava(ctx context.Context, dir string) (commands, error) {
	pom := filepath.Join(dir, "pom.xml")
	jars, err := fill(ctx, "java", pom, func(stage string) (string, error) {
		jars := filepath.Join(stage, "jars")
		return jars, execute(stage, nil, "mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DoutputDirectory="+jars)
	})
	if err != nil {
		return commands{}, err
	}
	path := dir + string(os.PathListSeparator) + filepath.Join(jars, "*")
	for _, class := range []string{"Producer", "Consumer"} {
		if err := execute(dir, nil, "javac", "-cp", path, filepath.Join(dir, class+".java")); err != nil {
			return commands{}, err
		}
	}
	// The quick compiler alone: the programs are short.
	java := func(class string) []string { return []string{"java", "-XX:TieredStopAtLevel=1", "-cp", path, class} }
	return commands{producer: java("Producer"), consumer: java("Consumer")}, nil
}

// jdbcURL is a Postgres URL as the JDBC driver reads it.
func jdbcURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw // the driver reports it
	}
	q := u.Query()
	q.Set("user", u.User.Username())
	password, _ := u.User.Password()
	q.Set("password", password)
	return "jdbc:postgresql://" + u.Host + u.Path + "?" + q.Encode()
}

// prepareRust builds in a folder of the cache: cargo keeps what it has built there, and the Cargo.lock of the first
// time.
func prepareRust(ctx context.Context, dir string) (commands, error) {
	name, err := cacheName("rust", filepath.Join(dir, "Cargo.toml"))
	if err != nil {
		return commands{}, err
	}
	cache, err := child.CacheDir()
	if err != nil {
		return commands{}, err
	}
	crate := filepath.Join(cache, name)
	// Another sample in this folder waits until our programs are copied.
	unlock, err := child.Lock(ctx, crate+".lock")
	if err != nil {
		return commands{}, err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(crate, "target")); err != nil {
		fmt.Println("samples: building librdkafka for Rust, once (some minutes)")
	}
	if err := copyFolder(crate, dir); err != nil {
		return commands{}, err
	}
	env := []string{"CARGO_TARGET_DIR=" + filepath.Join(crate, "target"), "CARGO_INCREMENTAL=0"}
	if err := execute(crate, env, "cargo", "build", "--quiet"); err != nil {
		return commands{}, err
	}
	var programs []string
	for _, name := range []string{"producer", "consumer"} {
		program := filepath.Join(dir, name)
		if err := copyFile(program, filepath.Join(crate, "target", "debug", name)); err != nil {
			return commands{}, err
		}
		if err := os.Chmod(program, 0o755); err != nil {
			return commands{}, err
		}
		programs = append(programs, program)
	}
	return commands{producer: programs[:1:1], consumer: programs[1:]}, nil
}

// cacheName is the name of the folder with a language's dependencies. Another manifest gets another folder.
func cacheName(language, manifest string) (string, error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return "samples-" + language + "-" + hex.EncodeToString(sum[:4]), nil
}

// fill returns the folder of cacheName, and fills it if needed.
func fill(ctx context.Context, language, manifest string, fetch func(stage string) (string, error)) (string, error) {
	name, err := cacheName(language, manifest)
	if err != nil {
		return "", err
	}
	return child.Fill(ctx, name, fetch)
}

// execute runs a program that must succeed. It outlives an interrupt: child.Fill lets the next run profit.
func execute(dir string, env []string, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run %s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// copyFolder copies the files below from, without what a person who ran the sample there has installed or built. A
// file that is the same already keeps its time, so that cargo does not build it again.
func copyFolder(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == "target" || d.Name() == ".venv") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return copyFile(filepath.Join(to, rel), path)
	})
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
