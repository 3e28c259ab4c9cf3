package pgtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// create creates the data directory. initdb costs two seconds of processor time, so each fetched server runs it once:
// its result is kept in the cache and copied, with a system identifier of its own for each copy.
func (s *Server) create(ctx context.Context) error {
	cache, err := child.CacheDir()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(s.BinDir, cache+string(filepath.Separator)) { // an installed server can be another one tomorrow
		return s.initdb(ctx)
	}
	name := fmt.Sprintf("initdb-%s-%x", s.Major, sha256.Sum256([]byte(s.BinDir)))
	template, err := child.Fill(ctx, name[:len("initdb-")+len(s.Major)+9], func(stage string) (string, error) {
		if err := os.Chmod(stage, 0o755); err != nil { // the server's account has to reach it
			return "", err
		}
		t := &Server{Major: s.Major, BinDir: s.BinDir, env: s.env, account: s.account, dir: filepath.Join(stage, "server")}
		t.DataDir = filepath.Join(t.dir, "data")
		if err := errors.Join(os.Mkdir(t.dir, 0o755), s.account.Give(t.dir)); err != nil {
			return "", err
		}
		return t.DataDir, t.initdb(ctx)
	})
	if err != nil {
		return err
	}
	if err := s.copyTemplate(template); err != nil {
		return fmt.Errorf("copy %s: %w", template, err)
	}
	return nil
}

func (s *Server) copyTemplate(template string) error {
	// As initdb does: the time, and what makes two of one moment differ.
	id := uint64(time.Now().Unix())<<32 | uint64(rand.Uint32()) //nolint:gosec // a time after 1970
	return filepath.WalkDir(template, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(template, path)
		if err != nil {
			return err
		}
		to := filepath.Join(s.DataDir, rel)
		if d.IsDir() {
			err = os.Mkdir(to, 0o700)
		} else {
			err = copyFile(path, to, rel, id)
		}
		if err != nil || s.account.credential == nil {
			return err
		}
		return os.Chown(to, int(s.account.credential.Uid), int(s.account.credential.Gid))
	})
}

func copyFile(from, to, rel string, id uint64) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	switch {
	case rel == filepath.Join("global", "pg_control"):
		err = identifyControl(b, id)
	case filepath.Dir(rel) == "pg_wal" && len(b) >= 32: // the header of a segment's first page
		binary.NativeEndian.PutUint64(b[24:], id)
	}
	if err != nil {
		return err
	}
	size := len(b)
	if err := os.WriteFile(to, bytes.TrimRight(b, "\x00"), 0o600); err != nil {
		return err
	}
	return os.Truncate(to, int64(size)) // most of a WAL segment is a hole then
}

// identifyControl writes a system identifier, the first field of pg_control, and its checksum, which is after the last
// field: where that is differs between the versions.
func identifyControl(b []byte, id uint64) error {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for end := 64; end+4 <= len(b); end += 4 {
		if crc32.Checksum(b[:end], castagnoli) != binary.NativeEndian.Uint32(b[end:]) {
			continue
		}
		binary.NativeEndian.PutUint64(b, id)
		binary.NativeEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
		return nil
	}
	return errors.New("pg_control has no checksum")
}
