// Package systemd tells the service manager that started us how we do: sd_notify(3), over the datagram socket that it
// names in the environment. Without one nothing is sent.
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
	// Watchdog is how long the manager waits for a sign of life; 0: it does not wait for any.
	Watchdog time.Duration
}

// FromEnv reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; pid is our own. An error names what cannot be understood; the
// Notifier does then what it can.
func FromEnv(getenv func(string) string, pid int) (*Notifier, error) {
	n := &Notifier{socket: getenv("NOTIFY_SOCKET")}
	if n.socket != "" && n.socket[0] != '/' && n.socket[0] != '@' {
		socket := n.socket
		n.socket = ""
		return n, fmt.Errorf("NOTIFY_SOCKET=%q is neither a path nor an abstract socket", socket)
	}
	usec := getenv("WATCHDOG_USEC")
	if of := getenv("WATCHDOG_PID"); n.socket == "" || usec == "" || of != "" && of != strconv.Itoa(pid) {
		return n, nil
	}
	us, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || us <= 0 {
		return n, fmt.Errorf("WATCHDOG_USEC=%q is no number of microseconds", usec)
	}
	n.Watchdog = time.Duration(us) * time.Microsecond
	return n, nil
}

// Active reports whether anybody is told.
func (n *Notifier) Active() bool { return n.socket != "" }

// sendWithin bounds the wait for a manager that does not read.
const sendWithin = time.Second

// Send tells assignments such as READY=1, all in one datagram.
func (n *Notifier) Send(assignments ...string) error {
	if n.socket == "" {
		return nil
	}
	// Go takes a leading @ for the abstract namespace, as systemd does.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(sendWithin))
	_, err = c.Write([]byte(strings.Join(assignments, "\n")))
	return errors.Join(err, c.Close())
}

// Status is the assignment that `systemctl status` shows, in one line.
func Status(text string) string {
	return "STATUS=" + strings.NewReplacer("\n", " ", "\r", " ").Replace(text)
}

// Extend is the assignment that asks for so much time for the present start, stop or reload.
func Extend(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// Reloading are the assignments before settings are read again; READY=1 ends it.
func Reloading() []string {
	all := []string{"RELOADING=1"}
	if us := monotonicMicros(); us > 0 {
		all = append(all, "MONOTONIC_USEC="+strconv.FormatInt(us, 10)) // Type=notify-reload wants to know when
	}
	return all
}
