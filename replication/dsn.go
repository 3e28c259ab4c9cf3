package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// What pgconn says about certificates begins like this, and repeats nothing of the connection string.
var (
	aboutFiles    = []string{"unable to add CA to cert pool", "failed to decode sslkey", "unable to load cert: ", "unable to decrypt key: "}
	aboutSettings = []string{`both "sslcert" and "sslkey" are required`, "sslmode is invalid", "unable to find sslpassword"}
)

// certificateError is the part of err that is about certificates, nil if none is.
func certificateError(err error, words []string) error {
	for ; err != nil; err = errors.Unwrap(err) {
		if slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(err.Error(), w) }) {
			return err
		}
	}
	return nil
}

// FileError says what is wrong with a file that the connection string names: it may just be being rotated.
func FileError(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path
	}
	return certificateError(err, aboutFiles)
}

// URLError is what may be shown of an error of pgx.ParseConfig. Its own text repeats the connection string and masks what it
// takes for the password, which in a malformed one may be something else.
func URLError(err error) error {
	if e := FileError(err); e != nil {
		return e
	}
	if e := certificateError(err, aboutSettings); e != nil {
		return e
	}
	return errors.New("this is no connection string (it is not shown); the port is a number, and in a URL special characters of user and password are percent-encoded, e.g. %40 for @")
}

// isCertificate: a certificate is not accepted, here or there.
func isCertificate(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // how crypto/tls gives the other side's alert
		return true
	}
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(x509.UnknownAuthorityError)) || errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError))
}

// errStandby is a server that is no primary.
var errStandby = errors.New("the server is in recovery: a standby, or a primary that is just starting; events are read where they are written")

// standbyRemedy is the remedy when the connection string names a standby alone.
const standbyRemedy = "name the primary, or all hosts, in postgres.url (postgres://user@host1,host2/database)"

// onlyPrimary accepts no server in recovery, whatever target_session_attrs says: a standby among several hosts, or behind
// a name that has not moved yet, is not where events are written. pgconn's own check for read-write would refuse every
// server, because our session makes itself read-only.
func onlyPrimary(ctx context.Context, conn *pgconn.PgConn) error {
	result, err := conn.Exec(ctx, "select pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if string(result[0].Rows[0][0]) != "f" {
		return errStandby
	}
	return nil
}
