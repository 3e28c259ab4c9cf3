package retention

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestArchiveLeavesNoZombie: the processes of a command that was stopped are no zombies, although orphans become
// children of this process, as they do of the first one of a container.
func TestArchiveLeavesNoZombie(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
	said, output := io.Pipe()
	c := &Command{Args: []string{"sh", "-c", "sleep 300 & echo $!; wait"}, Output: output, Idle: time.Minute}
	var pid int
	failed := errors.New("a row that cannot be read")
	err := c.Store(t.Context(), &Leaf{}, Age{}, func(io.Writer) error {
		if _, err := fmt.Fscanln(said, &pid); err != nil {
			return err
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); !errors.Is(unix.Kill(pid, 0), unix.ESRCH); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the process was not waited for")
		}
	}
}
