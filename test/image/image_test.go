// Package image tests the container image built by `make image-test`, without a container engine.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// image is an archive that docker load can read (Docker Image Specification 1.2).
type image struct {
	config struct {
		Config struct {
			User         string
			Entrypoint   []string
			Cmd          []string
			Env          []string
			Labels       map[string]string
			ExposedPorts map[string]any
		} `json:"config"`
	}
	tags   []string
	layers []string // names in the archive
	files  map[string][]byte
}

func load(t *testing.T) *image {
	t.Helper()
	file := os.Getenv("OUTBOXCDC_TEST_IMAGE")
	if file == "" {
		t.Skip("the container image is not tested: make image-test (needs buildah, and root)")
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img := &image{files: map[string][]byte{}}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if img.files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(img.files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("%d images: %v", len(manifest), err)
	}
	img.tags, img.layers = manifest[0].RepoTags, manifest[0].Layers
	if err := json.Unmarshal(img.files[manifest[0].Config], &img.config); err != nil {
		t.Fatal(err)
	}
	return img
}

// unpack writes the image's files to dir, and returns the names of those that are not directories.
func (img *image) unpack(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, layer := range img.layers {
		for r := tar.NewReader(bytes.NewReader(img.files[layer])); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			at, name := filepath.Join(dir, filepath.FromSlash(h.Name)), path.Clean("/"+h.Name)
			if h.FileInfo().IsDir() {
				err = os.MkdirAll(at, 0o755)
			} else {
				names = append(names, name)
				err = write(at, r, h.FileInfo().Mode())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(names)
	return names
}

func write(at string, r io.Reader, mode fs.FileMode) error {
	if !mode.IsRegular() {
		return fmt.Errorf("%s is no plain file: %v", at, mode)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// The image has the binary and CA certificates, nothing else, and declares its user and its labels.
func TestImage(t *testing.T) {
	img := load(t)
	c := img.config.Config
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/outboxcdc"}) || !slices.Equal(c.Cmd, []string{"run"}) {
		t.Errorf("user %q, entry point %q, command %q", c.User, c.Entrypoint, c.Cmd)
	}
	if _, ok := c.ExposedPorts["9464/tcp"]; !ok {
		t.Errorf("ports %v", c.ExposedPorts)
	}
	for _, label := range []string{"version", "revision", "source", "licenses", "title", "description"} {
		if v := c.Labels["org.opencontainers.image."+label]; v == "" || v == "unknown" || strings.Contains(v, "$") {
			t.Errorf("label %s is %q", label, v)
		}
	}
	if len(img.tags) != 1 || !strings.Contains(img.tags[0], "outboxcdc:"+c.Labels["org.opencontainers.image.version"]) {
		t.Errorf("tags %v", img.tags)
	}
	root := t.TempDir()
	if names := img.unpack(t, root); !slices.Equal(names, []string{"/etc/ssl/certs/ca-certificates.crt", "/outboxcdc"}) {
		t.Errorf("files: %v", names)
	}
	certificates, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !x509.NewCertPool().AppendCertsFromPEM(certificates) {
		t.Errorf("the CA certificates cannot be read: %v", err)
	}
	t.Run("runs", func(t *testing.T) { runEntryPoint(t, img, root) })
}

// runEntryPoint runs the entry point with the image's files as root directory, as the image's user: it can write
// nowhere, and needs no other file.
func runEntryPoint(t *testing.T, img *image, root string) {
	if os.Getuid() != 0 {
		t.Skip("the image was not run: changing the root needs root")
	}
	for dir := root; dir != "/"; dir = filepath.Dir(dir) { // t.TempDir's directories are closed to other users
		if strings.HasPrefix(filepath.Base(dir), "Test") || dir == root {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	inside := func(ctx context.Context, args, env []string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, img.config.Config.Entrypoint[0], args...)
		cmd.Dir, cmd.Env = "/", append(slices.Clone(img.config.Config.Env), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	out, err := inside(t.Context(), []string{"version"}, nil).CombinedOutput()
	if err != nil || !strings.Contains(string(out), img.config.Config.Labels["org.opencontainers.image.version"]) {
		t.Fatalf("version: %v\n%s", err, out)
	}
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("127.0.0.1:%d", port)
	const away = "127.0.0.1:1"
	daemon := inside(t.Context(), img.config.Config.Cmd, []string{
		"OUTBOXCDC_HTTP_LISTEN=" + at, "OUTBOXCDC_KAFKA_BROKERS=" + away, "OUTBOXCDC_POSTGRES_URL=postgres://outboxcdc@" + away + "/shop",
	})
	var log bytes.Buffer
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	for status := 0; status != http.StatusOK; {
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v:\n%s", err, &log)
		case <-time.After(20 * time.Millisecond):
		}
		if res, err := http.Get("http://" + at + "/livez"); err == nil {
			status = res.StatusCode
			_ = res.Body.Close()
		}
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM it ended with %v:\n%s", err, &log)
	}
}
