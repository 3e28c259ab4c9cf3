package kafkatest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/child"
)

// RealVersion is the version of Kafka that pom.xml asks for.
const RealVersion = "4.3.1"

//go:embed pom.xml
var pom []byte

// RealAvailable is nil when a real Kafka can be started here; otherwise it says
// what is missing and what to do.
func RealAvailable() error {
	if _, err := findJava(); err != nil {
		return err
	}
	if haveJars() {
		return nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("a real Kafka cannot be fetched: there is no mvn (apt-get install maven), nor are the jars in the cache (%s): %w", child.CacheEnv, err)
	}
	return nil
}

func findJava() (string, error) {
	name := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		name = filepath.Join(home, "bin", "java")
	}
	java, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("a real Kafka cannot be run: there is no java, of which it wants 17 or newer (apt-get install openjdk-17-jre-headless): %w", err)
	}
	return java, nil
}

// jarsName is the folder of the jars in the cache; another pom gets another.
func jarsName() string {
	sum := sha256.Sum256(pom)
	return "kafka-" + RealVersion + "-" + hex.EncodeToString(sum[:4])
}

func haveJars() bool {
	cache, err := child.CacheDir()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(cache, jarsName()))
	return err == nil
}

// FetchReal returns the folder with the jars of a real Kafka, fetching them
// into the cache (45 MB) unless they are there. Several processes may do so at
// once.
func FetchReal(ctx context.Context) (dir string, err error) {
	dir, err = child.Fill(ctx, jarsName(), func(stage string) (string, error) {
		file := filepath.Join(stage, "pom.xml")
		if err := os.WriteFile(file, pom, 0o644); err != nil {
			return "", err
		}
		libs := filepath.Join(stage, "libs")
		cmd := exec.Command("mvn", "-q", "-B", "-f", file, "dependency:copy-dependencies", "-DoutputDirectory="+libs)
		cmd.Dir = stage
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("run mvn: %w; it said:\n%s", err, strings.TrimSpace(string(out)))
		}
		if _, err := os.Stat(filepath.Join(libs, "kafka_2.13-"+RealVersion+".jar")); err != nil {
			return "", fmt.Errorf("mvn succeeded, but: %w", err)
		}
		return libs, nil
	})
	if err != nil {
		return "", fmt.Errorf("fetch Kafka %s from Maven Central: %w", RealVersion, err)
	}
	return dir, nil
}
