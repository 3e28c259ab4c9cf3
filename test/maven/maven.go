// Package maven fetches software that is published as Java artifacts only, and starts servers of it: mvn puts a folder
// of jars into the cache.
package maven

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Jars are the dependencies of a pom, or the files of an archive.
type Jars struct {
	Name    string // what they are, with the version
	POM     []byte
	Archive string // group:artifact:version:type:classifier, in place of a pom
	Want    string // a file that must be among them
}

// folder returns the folder in the cache; another pom gets another.
func (j *Jars) folder() string {
	sum := sha256.Sum256(append([]byte(j.Archive), j.POM...))
	return strings.ReplaceAll(strings.ToLower(j.Name), " ", "-") + "-" + hex.EncodeToString(sum[:4])
}

// Java finds the java program.
func Java() (string, error) {
	name := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		name = filepath.Join(home, "bin", "java")
	}
	java, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no java, version 17 or newer is required (apt-get install openjdk-17-jre-headless): %w", err)
	}
	return java, nil
}

// Available returns nil when the jars can be fetched and run here; otherwise the error says what is missing and what to
// do.
func (j *Jars) Available() error {
	if _, err := Java(); err != nil {
		return fmt.Errorf("%s cannot be run: %w", j.Name, err)
	}
	if cache, err := child.CacheDir(); err == nil {
		if _, err := os.Stat(filepath.Join(cache, j.folder())); err == nil {
			return nil
		}
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("%s cannot be fetched: there is no mvn (apt-get install maven), nor are the jars in the cache (%s): %w", j.Name, child.CacheEnv, err)
	}
	return nil
}

// Fetch returns the folder of the jars, and fills it if needed. Several processes may do so at once.
func (j *Jars) Fetch(ctx context.Context) (dir string, err error) {
	dir, err = child.Fill(ctx, j.folder(), func(stage string) (string, error) {
		libs := filepath.Join(stage, "libs")
		args := []string{"-q", "-B", "dependency:copy-dependencies"}
		if j.Archive != "" {
			args = []string{"-q", "-B", "dependency:unpack", "-Dartifact=" + j.Archive}
		} else if err := os.WriteFile(filepath.Join(stage, "pom.xml"), j.POM, 0o644); err != nil {
			return "", err
		}
		cmd := exec.Command("mvn", append(args, "-DoutputDirectory="+libs)...)
		cmd.Dir = stage
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("run mvn: %w; its output:\n%s", err, strings.TrimSpace(string(out)))
		}
		if _, err := os.Stat(filepath.Join(libs, j.Want)); err != nil {
			return "", fmt.Errorf("mvn succeeded, but: %w", err)
		}
		return libs, nil
	})
	if err != nil {
		return "", fmt.Errorf("fetch %s from Maven Central: %w", j.Name, err)
	}
	return dir, nil
}
