// Package credential runs the commands that print a password or a token (a cloud's command-line client, or a script),
// and makes the tokens of Amazon MSK.
package credential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/process"
)

// Timeout is the maximum time of a command. Then it is killed, with the processes that it has started.
const Timeout = 10 * time.Second

const (
	outputWait = time.Second // how long a process that the command has started may keep its output open after it

	maxOutput = 64 << 10 // of a token
	maxStderr = 512      // of what errors quote
	minSecret = 6        // a shorter word of the output is no secret, and may be in any text
)

// Run is [Output] of a command that prints one line.
func Run(ctx context.Context, command, env []string) (string, error) {
	secret, err := Output(ctx, command, env)
	if strings.ContainsAny(secret, "\n\r\x00") {
		return "", fmt.Errorf("run %s: it prints several lines; let it print the secret alone", strconv.Quote(command[0]))
	}
	return secret, err
}

// Output runs a command without a shell, and returns what it prints, without the white space at the ends. env is
// added to the environment of this process. When the command has ended, what still runs of its process group is
// killed. The error has the end of the command's standard error, and never its output.
func Output(ctx context.Context, command, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	ends, _ := ctx.Deadline() // that of the caller, if it is earlier
	limit := max(0, time.Until(ends).Round(time.Second/10))
	var out bytes.Buffer
	errs := process.Tail{Max: maxOutput}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killed, err := run(ctx, cmd, &limited{&out, maxOutput + 1}, &errs)
	secret := strings.TrimSpace(out.String())
	switch {
	case killed && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it has not ended within %s", limit)
	case err != nil:
	case secret == "":
		err = errors.New("it prints nothing")
	case out.Len() > maxOutput:
		err = fmt.Errorf("it prints more than %d bytes", maxOutput)
	}
	if err == nil {
		return secret, nil
	}
	text := errs.Lines()
	for _, word := range append([]string{secret}, strings.FieldsFunc(secret, func(r rune) bool { return strings.ContainsRune(" \t\r\n\"',:{}", r) })...) {
		if len(word) >= minSecret || word == secret && word != "" {
			text = strings.ReplaceAll(text, word, "xxxxx")
		}
	}
	if text = text[max(0, len(text)-maxStderr):]; text != "" {
		return "", fmt.Errorf("run %s: %w: %q", strconv.Quote(command[0]), err, text)
	}
	return "", fmt.Errorf("run %s: %w", strconv.Quote(command[0]), err)
}

// kill is replaced by a test.
var kill = syscall.Kill

var errOpen = errors.New("it has ended, but a process that it has started kept its output open, so whether that is all is not known; " +
	"let the command wait for that process, or redirect its output")

// run runs a command until it ends, or until ctx does. Then its process group is killed. That comes before
// cmd.Wait in the same goroutine, because only until then is the group's id sure to be that of the command.
func run(ctx context.Context, cmd *exec.Cmd, out, errs io.Writer) (killed bool, err error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	ended, silent := make(chan struct{}), make(chan struct{})
	go func() {
		process.AwaitExit(cmd.Process.Pid)
		close(ended)
	}()
	go func() {
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(out, stdout) })
		both.Go(func() { _, _ = io.Copy(errs, stderr) })
		both.Wait()
		close(silent)
	}()
	stop := func() error { return kill(-cmd.Process.Pid, syscall.SIGKILL) }
	select {
	case <-ended:
	case <-ctx.Done():
		killed = stop() == nil
	}
	var open error
	select {
	case <-silent:
	case <-time.After(outputWait):
		open = errOpen
	}
	_ = stop()       // what the command has left behind
	err = cmd.Wait() // closes the pipes, which a process outside of the group may have
	<-silent
	go process.Reap(cmd.Process.Pid)
	if killed && err != nil {
		return true, ctx.Err()
	}
	return killed, cmp.Or(err, open)
}

// limited drops what is written beyond a size, so that a command cannot fill the memory.
type limited struct {
	to   *bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	l.to.Write(p[:min(len(p), l.most-l.to.Len())])
	return len(p), nil
}

// Expiry returns when a token expires, if it says so: a JWT by its claim exp (RFC 7519, section 4.1.4), a URL that was
// signed for AWS by X-Amz-Date and X-Amz-Expires, in plain text or in base64.
func Expiry(token string) (time.Time, bool) {
	if parts := strings.Split(token, "."); len(parts) == 3 {
		var claims struct {
			Exp float64 `json:"exp"`
		}
		text, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(text, &claims) == nil && claims.Exp > 0 {
			return time.Unix(int64(claims.Exp), 0), true
		}
	}
	if plain, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token, "=")); err == nil {
		token = string(plain)
	}
	_, query, _ := strings.Cut(token, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return time.Time{}, false
	}
	at, err := time.Parse("20060102T150405Z", values.Get("X-Amz-Date"))
	seconds, err2 := strconv.ParseUint(values.Get("X-Amz-Expires"), 10, 31)
	if err != nil || err2 != nil {
		return time.Time{}, false
	}
	return at.Add(time.Duration(seconds) * time.Second), true
}
