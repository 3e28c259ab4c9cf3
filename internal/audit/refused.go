package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// What Kafka refuses is poison as well. If the policy is to skip it, nothing but a line of the log is left of the
// event, so its row would be missing for ever. Where the reason can be computed, the row counts as skipped. That a
// broker has refused a record for another reason cannot be known.

// settingsPatience is how long the settings of a topic are waited for while the snapshot holds its locks.
const settingsPatience = 10 * time.Second

// poison marks a row as poison.
func (r *run) poison(row *Row, cause router.Cause) {
	row.Poison, row.Skipped = string(cause), r.policy(row, cause) == relay.SkipPoison
}

func (r *run) policy(row *Row, cause router.Cause) relay.PoisonPolicy {
	return r.Poison.Of(&router.Poison{Cause: cause, ID: string(row.ID)})
}

// noteTooLarge marks a row as poison whose record is larger than its topic takes, unless that would stop the daemon.
func (r *run) noteTooLarge(ctx context.Context, row *Row, rec *router.Record) error {
	row.ID = rec.ID
	if rec.ID == nil || r.policy(row, router.TooLarge) == relay.StopAtPoison {
		return nil
	}
	limit, known := r.most[rec.Topic]
	if !known {
		ctx, cancel := context.WithTimeoutCause(ctx, settingsPatience, fmt.Errorf("read the settings of topic %s: no answer within %v", rec.Topic, settingsPatience))
		defer cancel()
		settings, err := r.log.Retention(ctx, []string{rec.Topic})
		if err != nil {
			return err
		}
		limit = settings[rec.Topic].MaxMessage
		r.most[rec.Topic] = limit
	}
	if r.log.TooLarge(rec, limit) {
		r.poison(row, router.TooLarge)
	}
	return nil
}

// refuse marks a row as poison if its topic does not have its partition, or is compacted and the record has no key.
func (r *run) refuse(row *Row) {
	t := r.topicLog(row.Topic)
	switch {
	case row.OwnPartition && len(t.parts) > 0 && int(row.Partition) >= len(t.parts):
		r.poison(row, router.BadPartition)
	case row.ByID && t.isKnown && t.Compact:
		r.poison(row, router.Rejected)
	}
}
