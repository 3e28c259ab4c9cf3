package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// release is the part of GoReleaser's configuration (version 2) that is used. An unknown key is an error.
type release struct {
	Version     int    `yaml:"version"`
	ProjectName string `yaml:"project_name"`
	Before      struct {
		Hooks []string `yaml:"hooks"`
	} `yaml:"before"`
	Builds []struct {
		Main         string   `yaml:"main"`
		Binary       string   `yaml:"binary"`
		Env          []string `yaml:"env"`
		Flags        []string `yaml:"flags"`
		Ldflags      []string `yaml:"ldflags"`
		ModTimestamp string   `yaml:"mod_timestamp"`
		Goos         []string `yaml:"goos"`
		Goarch       []string `yaml:"goarch"`
	} `yaml:"builds"`
	Archives []struct {
		Formats      []string `yaml:"formats"`
		NameTemplate string   `yaml:"name_template"`
		BuildsInfo   struct {
			MTime string `yaml:"mtime"`
		} `yaml:"builds_info"`
		Files []string `yaml:"files"`
	} `yaml:"archives"`
	NFPMs []struct {
		PackageName string   `yaml:"package_name"`
		Formats     []string `yaml:"formats"`
		Vendor      string   `yaml:"vendor"`
		Homepage    string   `yaml:"homepage"`
		Maintainer  string   `yaml:"maintainer"`
		Description string   `yaml:"description"`
		License     string   `yaml:"license"`
		Section     string   `yaml:"section"`
		Bindir      string   `yaml:"bindir"`
		MTime       string   `yaml:"mtime"`
		Contents    []struct {
			Src      string `yaml:"src"`
			Dst      string `yaml:"dst"`
			Type     string `yaml:"type"`
			FileInfo struct {
				Mode os.FileMode `yaml:"mode"`
			} `yaml:"file_info"`
		} `yaml:"contents"`
	} `yaml:"nfpms"`
	Checksum struct {
		NameTemplate string `yaml:"name_template"`
		Algorithm    string `yaml:"algorithm"`
	} `yaml:"checksum"`
	SBOMs []struct {
		Artifacts string `yaml:"artifacts"`
	} `yaml:"sboms"`
	Signs []struct {
		Cmd       string   `yaml:"cmd"`
		Artifacts string   `yaml:"artifacts"`
		Signature string   `yaml:"signature"`
		Args      []string `yaml:"args"`
	} `yaml:"signs"`
	Snapshot struct {
		VersionTemplate string `yaml:"version_template"`
	} `yaml:"snapshot"`
	Changelog struct {
		Disable bool `yaml:"disable"`
	} `yaml:"changelog"`
	Release struct {
		Draft bool `yaml:"draft"`
	} `yaml:"release"`
}

// TestRelease checks that the release builds the same as `make build`, and packages existing files.
func TestRelease(t *testing.T) {
	text, err := os.ReadFile("../.goreleaser.yaml")
	must(t, err)
	var r release
	must(t, yaml.UnmarshalWithOptions(text, &r, yaml.Strict()))
	if r.Version != 2 || len(r.Builds) != 1 || len(r.Archives) != 1 || len(r.NFPMs) != 1 {
		t.Fatalf("%+v", r)
	}
	makefile, err := os.ReadFile("../Makefile")
	must(t, err)
	b := r.Builds[0]
	ldflags := strings.NewReplacer("{{.Version}}", "$(VERSION)", "{{.FullCommit}}", "$(REVISION)").Replace(b.Ldflags[0])
	if !strings.Contains(string(makefile), "LDFLAGS   = "+ldflags+"\n") || !slices.Equal(b.Env, []string{"CGO_ENABLED=0"}) || !slices.Equal(b.Flags, []string{"-trimpath"}) {
		t.Errorf("it builds otherwise than make does: %+v", b)
	}
	if b.ModTimestamp == "" || r.NFPMs[0].MTime == "" || r.Archives[0].BuildsInfo.MTime == "" {
		t.Error("two builds of one commit would differ")
	}
	var files, packaged []string
	files = append(files, r.Archives[0].Files...)
	for _, c := range r.NFPMs[0].Contents {
		if c.Type != "dir" {
			files, packaged = append(files, c.Src), append(packaged, c.Src)
		}
	}
	for _, name := range append(files, b.Main) {
		if strings.HasPrefix(name, "bin/completion/") { // a hook creates these
			shell := strings.TrimPrefix(filepath.Ext(name), ".")
			if !strings.Contains(r.Before.Hooks[1], "bin/completion/outboxcdc.$s") || shell != "" && shell != "/*" && !strings.Contains(r.Before.Hooks[1], shell) {
				t.Errorf("no hook makes %s", name)
			}
			continue
		}
		if _, err := os.Stat(filepath.Join("..", name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range unitFiles {
		if name = "deploy/" + name; !slices.Contains(r.Archives[0].Files, name) || !slices.Contains(packaged, name) {
			t.Errorf("archives or packages do not have %s", name)
		}
	}
	// The unit starts the binary that the package installs.
	if got := only(t, unit(t), "ExecStart"); !strings.HasPrefix(got, r.NFPMs[0].Bindir+"/"+b.Binary+" ") {
		t.Errorf("ExecStart=%s, and the package puts the binary into %s", got, r.NFPMs[0].Bindir)
	}
}

// TestDockerfile checks that the image contains CA certificates, no other program than the daemon, and a numeric user.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	must(t, err)
	_, final, ok := strings.Cut(string(text), "\nFROM scratch\n")
	if !ok || strings.Contains(final, "\nFROM ") || strings.Contains(final, "\nRUN ") {
		t.Fatal("the image is not from scratch")
	}
	for _, want := range []string{
		"/etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt\n", "\nUSER 65532:65532\n", "\nEXPOSE 9464\n",
		"\nENTRYPOINT [\"/outboxcdc\"]\n", "org.opencontainers.image.licenses=\"Apache-2.0\"",
	} {
		if !strings.Contains(final, want) {
			t.Errorf("it has no %q", want)
		}
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "-X main.version=$VERSION -X main.revision=$REVISION"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the binary is built without %s", want)
		}
	}
}
