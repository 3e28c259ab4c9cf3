package inbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Reused is what to do with a record that has the id of an event that was handled, and another origin or content. This
// cannot happen if ids are random UUIDs.
type Reused int

const (
	StopAtReused Reused = iota // with a [ReusedIDError]
	HandleReused               // it is another event
	DropReused                 // it is the same event
)

// Once reports whether the consumer sees the event for the first time, and stores that it has. If another transaction
// has stored the event and is still open, Once waits for its end.
func (s *Store) Once(ctx context.Context, tx *sql.Tx, consumer string, e Event) (first bool, err error) {
	news, err := s.OnceEach(ctx, sqlTx{tx}, consumer, []Event{e})
	return err == nil && news[0], err
}

// OnceEach is [Store.Once] for several events, with one statement, and for other drivers than database/sql. An event
// that occurs twice is new once.
func (s *Store) OnceEach(ctx context.Context, tx Tx, consumer string, events []Event) (isNew []bool, err error) {
	isNew = make([]bool, len(events))
	byTopic := map[string]map[string]int{} // topic, stored id, index of the first such event
	for i, e := range events {
		if e.ID == "" || e.Topic == "" {
			return nil, errors.New("an event without a topic or an id cannot be recognized")
		}
		ids := byTopic[e.Topic]
		if ids == nil {
			ids = map[string]int{}
			byTopic[e.Topic] = ids
		}
		if _, ok := ids[s.storedID(e)]; !ok {
			ids[s.storedID(e)] = i
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		if err := s.add(ctx, tx, consumer, topic, events, byTopic[topic], isNew); err != nil {
			return nil, fmt.Errorf("store ids of consumer %q, topic %q: %w", consumer, topic, err)
		}
	}
	for i, e := range events {
		// With HandleReused, the id may be stored alone, from before that was set.
		if isRandom(e.ID) || s.Reused == DropReused || isNew[i] != (s.Reused == HandleReused) {
			continue
		}
		if isNew[i], err = s.judge(ctx, tx, consumer, e); err != nil {
			return nil, err
		}
	}
	return isNew, nil
}

// add stores the ids of one topic, and sets isNew.
func (s *Store) add(ctx context.Context, tx Tx, consumer, topic string, events []Event, ids map[string]int, isNew []bool) error {
	var id, origin, content list
	for _, key := range slices.Sorted(maps.Keys(ids)) { // two transactions wait for each other's ids in the same order
		id.add(key)
		if e := events[ids[key]]; isRandom(e.ID) {
			origin.null()
			content.null()
		} else {
			origin.add(e.Origin)
			content.add(fmt.Sprint(e.Content))
		}
	}
	var added string
	err := tx.QueryRow(ctx, `WITH new AS (INSERT INTO `+s.events()+` (consumer, topic, id, origin, content) `+
		`SELECT $1, $2, e.* FROM unnest($3::text[], $4::text[], $5::bigint[]) AS e ON CONFLICT DO NOTHING RETURNING id) `+
		`SELECT CASE WHEN count(*) = cardinality($3::text[]) THEN '' ELSE coalesce(json_agg(id), '[]')::text END FROM new`,
		[]any{consumer, topic, id.String(), origin.String(), content.String()}, &added)
	if err != nil {
		return err
	}
	if added == "" {
		for _, i := range ids {
			isNew[i] = true
		}
		return nil
	}
	var news []string
	err = json.Unmarshal([]byte(added), &news)
	for _, key := range news {
		isNew[ids[key]] = true
	}
	return err
}

// judge reports whether e, whose id may be used again, is another event than the one whose id is stored alone. It is
// the same one if origin and content are the same.
func (s *Store) judge(ctx context.Context, tx Tx, consumer string, e Event) (isOther bool, err error) {
	stored := Event{Topic: e.Topic, ID: e.ID}
	err = tx.QueryRow(ctx, `SELECT coalesce(origin, ''), coalesce(content, 0) FROM `+s.events()+` WHERE consumer = $1 AND topic = $2 AND id = $3`,
		[]any{consumer, e.Topic, e.ID}, &stored.Origin, &stored.Content)
	switch {
	case s.Reused == HandleReused && errors.Is(err, sql.ErrNoRows):
		return true, nil
	case errors.Is(err, sql.ErrNoRows): // it was stored when add looked, and was pruned since
		isNew, err := s.OnceEach(ctx, tx, consumer, []Event{e})
		return err == nil && isNew[0], err
	case err != nil:
		return false, fmt.Errorf("read the id %q of consumer %q, topic %q: %w", e.ID, consumer, e.Topic, err)
	case e.Content == stored.Content && (e.Origin == stored.Origin || e.Origin == "" || stored.Origin == ""):
		return false, nil
	case s.Reused == HandleReused:
		return true, nil
	}
	return false, &ReusedIDError{Event: e, Stored: stored}
}

// storedID is what is stored for an event. If an id may be used again, it also has origin and content. A random UUID
// stays the same one if its column becomes text or uuid.
func (s *Store) storedID(e Event) string {
	switch {
	case isRandom(e.ID):
		return strings.ToLower(e.ID)
	case s.Reused == HandleReused:
		return fmt.Sprintf("%s %s %016x", e.ID, e.Origin, uint64(e.Content))
	}
	return e.ID
}

// Undo makes events new again that this transaction has stored, outside of savepoints.
func (s *Store) Undo(ctx context.Context, tx Tx, consumer string, events []Event) error {
	ids := map[string]*list{}
	for _, e := range events {
		if ids[e.Topic] == nil {
			ids[e.Topic] = &list{}
		}
		ids[e.Topic].add(s.storedID(e))
	}
	for topic, list := range ids {
		_, err := tx.Exec(ctx, `DELETE FROM `+s.events()+` WHERE consumer = $1 AND topic = $2 AND id = ANY ($3::text[]) AND xmin = pg_current_xact_id()::xid`,
			consumer, topic, list.String())
		if err != nil {
			return fmt.Errorf("delete ids of consumer %q, topic %q: %w", consumer, topic, err)
		}
	}
	return nil
}

// list is an array of Postgres in its text form, which every driver can send.
type list struct{ strings.Builder }

var escapeItem = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (l *list) item(text string) {
	if l.Len() == 0 {
		l.WriteByte('{')
	} else {
		l.WriteByte(',')
	}
	l.WriteString(text)
}

func (l *list) add(text string) { l.item(`"` + escapeItem.Replace(text) + `"`) }
func (l *list) null()           { l.item("NULL") }
func (l *list) String() string  { return "{" + strings.TrimPrefix(l.Builder.String(), "{") + "}" }

// pruneChunk is how many ids one statement of Prune deletes.
const pruneChunk = 10_000

// Prune deletes the ids that a consumer has stored longer ago than keep, and returns how many. A duplicate that
// arrives later than that is handled again. Run does it itself. Pass a *sql.DB: then each chunk of ids is a transaction
// of its own.
func (s *Store) Prune(ctx context.Context, q Execer, consumer string, keep time.Duration) (deleted int64, err error) {
	for {
		n, err := s.PruneChunk(ctx, sqlExec{q}.Exec, consumer, keep)
		if deleted += n; err != nil || n < pruneChunk {
			return deleted, err
		}
	}
}

// PruneChunk deletes at most 10,000 ids, the oldest first. Rows that another transaction deletes are left to it.
func (s *Store) PruneChunk(ctx context.Context, exec func(ctx context.Context, query string, args ...any) (int64, error),
	consumer string, keep time.Duration,
) (int64, error) {
	n, err := exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %[1]s `+
		`WHERE consumer = $1 AND at < now() - $2::float8 * interval '1 second' ORDER BY at LIMIT %d FOR UPDATE SKIP LOCKED))`, s.events(), pruneChunk),
		consumer, keep.Seconds())
	if err != nil {
		return n, fmt.Errorf("delete old ids of consumer %q: %w", consumer, err)
	}
	return n, nil
}
