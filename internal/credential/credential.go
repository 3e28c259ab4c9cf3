// Package credential runs the commands that print a password or a token (a cloud's command-line client, or a script),
// and makes the tokens of Amazon MSK.
package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/process"
)

// Timeout is the maximum time of a command. Then it is killed, with the processes that it has started.
const Timeout = 10 * time.Second

const (
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

// Output runs a command without a shell, and returns what it prints, without the white space at the ends. env is added
// to the environment of this process. The error has the end of the command's standard error, and never its output.
func Output(ctx context.Context, command, env []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	var out bytes.Buffer
	errs := process.Tail{Max: maxOutput}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &limited{&out, maxOutput + 1}, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // a process that has left the group may keep the pipes open
	killed, err := run(ctx, cmd)
	secret := strings.TrimSpace(out.String())
	switch {
	case killed && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it has not ended within %s", Timeout)
	case errors.Is(err, exec.ErrWaitDelay):
		err = errors.New("it has ended, but a process that it has started keeps its output open, so whether that is all is not known; redirect the output of that process")
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

// run runs a command until it ends, or until ctx does: then its process group is killed. That comes before cmd.Wait in
// the same goroutine, because only until then is the group's id sure to be that of the command.
func run(ctx context.Context, cmd *exec.Cmd) (killed bool, err error) {
	if err := cmd.Start(); err != nil {
		return false, err
	}
	ended := make(chan struct{})
	go func() {
		process.AwaitExit(cmd.Process.Pid)
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		killed = kill(-cmd.Process.Pid, syscall.SIGKILL) == nil
	}
	err = cmd.Wait()
	if killed && err != nil {
		err = ctx.Err()
	}
	return killed, err
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
