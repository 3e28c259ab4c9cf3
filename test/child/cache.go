package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// CacheEnv is the environment variable that names the folder of fetched servers.
const CacheEnv = "OUTBOXCDC_CACHE"

// CacheDir returns the folder of fetched servers, and creates it if needed. Every user can traverse it, because a
// server started by root runs as another user.
func CacheDir() (string, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "outboxcdc-cache-"+strconv.Itoa(os.Getuid()))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the cache folder (%s chooses another): %w", CacheEnv, err)
	}
	return dir, nil
}

// Fill returns <cache>/name, calling fetch to fill it unless it exists. Of several processes and goroutines one
// fetches, the rest wait.
//
// fetch gets an empty folder and leaves the result in a folder of its choice beneath it, whose path it returns. One
// rename makes that <cache>/name, so an interrupted fetch leaves nothing that looks complete. fetch continues when ctx
// is done: the next caller profits.
func Fill(ctx context.Context, name string, fetch func(stage string) (result string, err error)) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, name)
	if isDir(final) {
		return final, nil
	}
	unlock, err := Lock(ctx, final+".lock")
	if err != nil {
		return "", err
	}
	if isDir(final) { // another process filled it while we waited
		unlock()
		return final, nil
	}
	filled := make(chan error, 1)
	go func() {
		defer unlock()
		filled <- fillLocked(final, fetch)
	}()
	select {
	case err := <-filled:
		return final, err
	case <-ctx.Done():
		return "", fmt.Errorf("fetch %s: %w (it continues in the background)", name, ctx.Err())
	}
}

func fillLocked(final string, fetch func(string) (string, error)) error {
	// We hold the lock, so other stages were left by processes that died.
	old, _ := filepath.Glob(final + ".stage*")
	for _, dir := range old {
		_ = os.RemoveAll(dir)
	}
	stage, err := os.MkdirTemp(filepath.Dir(final), filepath.Base(final)+".stage")
	if err != nil {
		return fmt.Errorf("create a folder to fetch into: %w", err)
	}
	defer os.RemoveAll(stage)
	result, err := fetch(stage)
	if err != nil {
		return err
	}
	if err := openToAll(result); err != nil {
		return fmt.Errorf("make %s readable for every user: %w", result, err)
	}
	if err := os.Rename(result, final); err != nil {
		return fmt.Errorf("move the fetched files into place: %w", err)
	}
	return nil
}

// openToAll is chmod -R a+rX: a umask of 077 must not lock out the user that the server will run as.
func openToAll(root string) error {
	return filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// Lock waits for the lock tied to a file and takes it. The kernel releases it when its holder dies.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a lock file: %w", err)
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process that fetches the same (lock %s): %w", path, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
