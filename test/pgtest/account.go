package pgtest

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Account is the user that a server runs as. Its zero value is our own user; initdb and postgres refuse root, so for
// root it is another user.
type Account struct {
	credential *syscall.Credential
}

// Credential returns the user for a child process, nil for our own.
func (a Account) Credential() *syscall.Credential { return a.credential }

// ServerAccount returns the user for servers on this machine.
func ServerAccount() (Account, error) {
	if os.Geteuid() != 0 {
		return Account{}, nil
	}
	// initdb needs a user that exists on the machine. One called postgres may belong to an installed server, whose
	// files are not ours.
	for _, name := range []string{"nobody", "postgres"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return Account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return Account{}, fmt.Errorf("find a user for PostgreSQL, which refuses root: this machine has neither the user nobody nor postgres; run as another user")
}

// Give gives a file or folder to the account, and checks that the account can reach it.
func (a Account) Give(path string) error {
	if a.credential == nil {
		return nil
	}
	if err := os.Chown(path, int(a.credential.Uid), int(a.credential.Gid)); err != nil {
		return fmt.Errorf("give %s to uid %d: %w", path, a.credential.Uid, err)
	}
	return a.canReach(filepath.Dir(path))
}

// canReach reports whether the account can traverse every folder down to dir. Only the bits for others count, or being
// the owner: good enough for the folders that root creates.
func (a Account) canReach(dir string) error {
	if a.credential == nil {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return err
		}
		st, _ := info.Sys().(*syscall.Stat_t)
		owner := st != nil && st.Uid == a.credential.Uid
		if mode := info.Mode(); mode&0o001 == 0 && !(owner && mode&0o100 != 0) {
			return fmt.Errorf("PostgreSQL refuses root and runs as uid %d, which cannot enter %s (mode %v): choose a folder that every user can traverse, e.g. under /tmp", a.credential.Uid, d, mode.Perm())
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// Env returns the environment of a server's programs: ours without variables that change their behaviour (PGDATA,
// PGPORT, locale), and a HOME that the account owns.
func (a Account) Env(home string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG") || strings.HasPrefix(kv, "HOME=") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "HOME="+home, "LC_ALL=C")
}
