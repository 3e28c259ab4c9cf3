// Package systemd sends the state of the process to systemd, as sd_notify(3) does: over the datagram socket that
// NOTIFY_SOCKET names. Without that variable nothing is sent.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Notifier sends to one service manager. The zero value sends nothing.
type Notifier struct {
	socket string
	// Watchdog is the interval in which the manager expects a notification WATCHDOG=1; 0: none is expected.
	Watchdog time.Duration
}

// FromEnv reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. pid is that of this process. If a variable is invalid,
// FromEnv returns an error and a Notifier that ignores the variable.
func FromEnv(getenv func(string) string, pid int) (*Notifier, error) {
	n := &Notifier{socket: getenv("NOTIFY_SOCKET")}
	if n.socket != "" && n.socket[0] != '/' && n.socket[0] != '@' {
		socket := n.socket
		n.socket = ""
		return n, fmt.Errorf("NOTIFY_SOCKET=%q is neither a path nor an abstract socket", socket)
	}
	usec := getenv("WATCHDOG_USEC")
	if watched := getenv("WATCHDOG_PID"); n.socket == "" || usec == "" || watched != "" && watched != strconv.Itoa(pid) {
		return n, nil
	}
	us, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || us <= 0 {
		return n, fmt.Errorf("WATCHDOG_USEC=%q is no number of microseconds", usec)
	}
	n.Watchdog = time.Duration(us) * time.Microsecond
	return n, nil
}

// Active reports whether there is a service manager.
func (n *Notifier) Active() bool { return n.socket != "" }

// sendTimeout bounds the wait for a manager that does not read.
const sendTimeout = time.Second

// Send sends assignments such as READY=1 in one datagram.
func (n *Notifier) Send(assignments ...string) error {
	if n.socket == "" {
		return nil
	}
	// For Go, too, a leading @ means the abstract namespace.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err = c.Write([]byte(strings.Join(assignments, "\n")))
	return errors.Join(err, c.Close())
}

// Status is the assignment with the text that `systemctl status` shows.
func Status(text string) string {
	return "STATUS=" + strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
}

// Extend is the assignment that extends the timeout of the present start, stop or reload to d.
func Extend(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// Reloading are the assignments that announce a reload. READY=1 announces its end.
func Reloading() []string {
	all := []string{"RELOADING=1"}
	if us := monotonicMicros(); us > 0 {
		all = append(all, "MONOTONIC_USEC="+strconv.FormatInt(us, 10)) // Type=notify-reload requires the time
	}
	return all
}
