package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// connectError is pgconn's error without the attempts that say nothing. With sslmode=prefer, the default, pgconn
// tries each address with TLS and then without: the second attempt has the cause.
type connectError struct {
	*pgconn.ConnectError
	attempts []string
}

// refusedTLS ends the text of an attempt at a server without TLS.
const refusedTLS = ": tls error: server refused TLS connection"

// ConnectError returns an error of pgx or pgconn as it is shown: on one line, and without the attempts that say
// nothing.
func ConnectError(err error) error {
	whole, ok := err.(*pgconn.ConnectError) //nolint:errorlint // a wrapped one has a text of its own
	if !ok {
		return err
	}
	all, ok := whole.Unwrap().(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var texts []string
	for _, attempt := range all.Unwrap() {
		texts = append(texts, attempt.Error())
	}
	e := &connectError{ConnectError: whole}
	for _, text := range texts {
		address, refused := strings.CutSuffix(text, refusedTLS)
		again := func(other string) bool { return other != text && strings.HasPrefix(other, address+": ") }
		if !slices.Contains(e.attempts, text) && (!refused || !slices.ContainsFunc(texts, again)) {
			e.attempts = append(e.attempts, text)
		}
	}
	return e
}

func (e *connectError) Error() string {
	return fmt.Sprintf("failed to connect to `user=%s database=%s`: %s", e.Config.User, e.Config.Database, strings.Join(e.attempts, "; "))
}

func (e *connectError) Unwrap() error { return errors.Unwrap(e.ConnectError) }
