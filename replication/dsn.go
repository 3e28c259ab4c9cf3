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

// Prefixes of pgconn's errors about certificates. These errors contain no part of the connection string.
var (
	filePrefixes    = []string{"unable to add CA to cert pool", "failed to decode sslkey", "unable to load cert: ", "unable to decrypt key: "}
	settingPrefixes = []string{`both "sslcert" and "sslkey" are required`, "sslmode is invalid", "unable to find sslpassword"}
)

// certificateError returns the error in the chain of err that begins with one of the prefixes, or nil.
func certificateError(err error, prefixes []string) error {
	for ; err != nil; err = errors.Unwrap(err) {
		if slices.ContainsFunc(prefixes, func(w string) bool { return strings.HasPrefix(err.Error(), w) }) {
			return err
		}
	}
	return nil
}

// FileError returns the error about a file that the connection string names, or nil. The file may be in rotation.
func FileError(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path
	}
	return certificateError(err, filePrefixes)
}

// URLError returns an error of pgx.ParseConfig without secrets. The text of pgx repeats the connection string, and
// may mask the wrong part as the password if the string is malformed.
func URLError(err error) error {
	if e := FileError(err); e != nil {
		return e
	}
	if e := certificateError(err, settingPrefixes); e != nil {
		return e
	}
	return errors.New("this is not a connection string (its text is not shown); the port is a number, and in a URL special characters of user and password are percent-encoded, e.g. %40 for @")
}

// isCertificateError reports whether the client or the server did not accept the other's certificate.
func isCertificateError(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // an alert from the server
		return true
	}
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.As(err, new(x509.UnknownAuthorityError)) || errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError))
}

// errStandby is the error of requirePrimary.
var errStandby = errors.New("the server is in recovery: a standby, or a primary that is just starting; events can only be read from the primary")

// standbyRemedy is the remedy for errStandby.
const standbyRemedy = "name the primary, or all hosts, in postgres.url (postgres://user@host1,host2/database)"

// requirePrimary returns an error for a server in recovery, regardless of target_session_attrs: a standby among
// several hosts, or one that a DNS name still points to. pgconn's own check for read-write would refuse every server,
// because our session is read-only.
func requirePrimary(ctx context.Context, conn *pgconn.PgConn) error {
	result, err := conn.Exec(ctx, "select pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if string(result[0].Rows[0][0]) != "f" {
		return errStandby
	}
	return nil
}
