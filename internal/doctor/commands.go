package doctor

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/credential"
)

// shortLife is the life of a token below which a slow connection may need a second one.
const shortLife = 30 * time.Second

// checkCommand runs the command of a setting that prints a password or a token, and says how long it is valid. It
// returns false if the command fails.
func (r *findings) checkCommand(ctx context.Context, check, setting string, run func(context.Context) (string, error), now time.Time) bool {
	if run == nil {
		r.ok(check, "%s is not used", setting)
		return true
	}
	secret, err := run(ctx)
	if err != nil {
		r.fail(check, Unavailable, []Remedy{advicef("see docs/security.md; try a command of %s as the daemon's user, with the environment of the daemon", setting)}, "%s", cause(err))
		return false
	}
	ends, known := credential.Expiry(secret)
	switch left := ends.Sub(now).Round(time.Second); {
	case !known:
		r.ok(check, "the command prints a secret that does not say how long it is valid")
	case left < shortLife:
		r.warn(check, []Remedy{advicef("let the command request a new token each time, and check the clock of this machine")},
			"the token is valid for %s more; a connection may fail before it is used", left)
	default:
		r.ok(check, "the command prints a token that is valid for %s", left)
	}
	return true
}
