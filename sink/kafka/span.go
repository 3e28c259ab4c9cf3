package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// Span is a part of one partition: the offsets from From to before End.
type Span struct {
	Topic     string
	Partition int32
	First     int64       // where the log begins
	From      int64       // the next offset to read; ReadSpan advances it
	End       int64       // the offset after the last one to read
	Oldest    time.Time   // of the first record in the log; zero: there is none, or it has no timestamp
	Gap       bool        // after ReadSpan: the log has no records at the last offsets before End, see [Record]
	Deleted   int64       // how many offsets ReadSpan did not read because Kafka had deleted their records
	TopicID   sarama.Uuid // zero: the brokers give no ids
	leader    string      // address of the broker that leads the partition; "": to be looked up
}

// spanPermissions are those that Spans and ReadSpan need.
func spanPermissions(topic string) string { return "Read and Describe on topic " + topic }

// Spans finds the records of topics that were written at or after since, or all records if since is zero. It returns
// one span for each partition, by topic and partition. A span begins at the first record that is not older than
// since, and ends where the log ended during the call. Later records can be older than since: producers set
// timestamps. Topics that do not exist are returned as missing.
//
// If a partition has no record at or after since, its span is empty. In one case Kafka finds none although there is
// one: records from after since were deleted with DeleteRecords, and the first one that is left is from before since.
func (c *Client) Spans(ctx context.Context, topics []string, since time.Time) (spans []Span, missing []string, err error) {
	ctl := c.takeControl("")
	defer c.returnControl(ctl)
	l := &spanLookup{client: c, ctl: ctl, since: since, unlisted: slices.Compact(slices.Sorted(slices.Values(topics))), absent: absences{}}
	for p := (patience{client: c}); len(l.unlisted)+len(l.open) > 0; {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		before := len(l.found) - len(l.unlisted)
		topic, err := l.round(ctx)
		if len(l.found)-len(l.unlisted) > before {
			p.progress()
		}
		if err == nil {
			continue
		}
		if err = p.wait(ctx, err); err != nil && ctx.Err() == nil {
			doing := "find the offsets of topics"
			if topic != "" {
				doing = "find the offsets of topic " + topic
			}
			return nil, nil, &failure{op: doing, topic: topic, permissions: spanPermissions(topic), err: err}
		}
	}
	for i := range l.found {
		if s := &l.found[i]; s.Oldest.IsZero() && s.First < s.End {
			if s.Oldest, err = c.oldest(ctx, *s); err != nil {
				return nil, nil, err
			}
		}
	}
	slices.SortFunc(l.found, func(a, b Span) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return l.found, l.missing, nil
}

// oldest reads the time of the first record in a log of which Kafka does not tell it.
func (c *Client) oldest(ctx context.Context, s Span) (at time.Time, err error) {
	found := errors.New("found")
	s.From = s.First
	if err = c.ReadSpan(ctx, &s, func(r *Record) error { at = r.Time; return found }); errors.Is(err, found) {
		err = nil
	}
	return at, err
}

// spanLookup is one call of Spans.
type spanLookup struct {
	client   *Client
	ctl      *control
	since    time.Time
	unlisted []string // topics whose partitions are not known
	missing  []string
	absent   absences
	open     []*Span // whose offsets are not known
	found    []Span
}

// round looks up the topics and asks each leader once. If something has to be asked again, it returns an error and
// the topic concerned.
func (l *spanLookup) round(ctx context.Context) (topic string, err error) {
	names := slices.Clone(l.unlisted)
	for _, s := range l.open {
		names = append(names, s.Topic)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	all, err := l.ctl.topics(ctx, names)
	if err != nil {
		return "", err
	}
	// A permission that is missing is the error to return, because waiting does not help.
	note := func(s *Span, problem error) {
		if err == nil || kindOf(problem).class == denied {
			topic, err = s.Topic, problem
		}
	}
	l.unlisted = slices.DeleteFunc(l.unlisted, func(name string) bool {
		listed, problem := l.list(name, all[name])
		if problem != nil {
			note(&Span{Topic: name}, problem)
		}
		return listed
	})
	leaders := map[string][]*Span{}
	l.open = slices.DeleteFunc(l.open, func(s *Span) bool {
		addr, problem := l.ctl.leaderIn(all[s.Topic], s.Partition)
		if problem != nil {
			note(s, fmt.Errorf("partition %d: %w", s.Partition, problem))
			return false
		}
		s.leader = addr
		leaders[addr] = append(leaders[addr], s)
		return true
	})
	for _, addr := range slices.Sorted(maps.Keys(leaders)) {
		for spans := range slices.Chunk(leaders[addr], endsPerRequest) {
			l.open = append(l.open, l.ask(ctx, addr, spans, note)...)
		}
	}
	return topic, err
}

// list opens a span for each partition of a topic. It reports whether the topic need not be looked up again.
func (l *spanLookup) list(name string, md *sarama.TopicMetadata) (listed bool, err error) {
	const read = 1 << 3 // AclOperation.READ
	if md == nil {
		err = sarama.ErrUnknownTopicOrPartition
	} else if err = checkComplete(md); err == nil && !isAllowed(md, read) {
		err = fmt.Errorf("reading is not allowed: %w", sarama.ErrTopicAuthorizationFailed)
	}
	missing := l.absent.count(name, err)
	switch {
	case err == nil:
		for _, part := range md.Partitions {
			l.open = append(l.open, &Span{Topic: name, TopicID: md.Uuid, Partition: part.ID})
		}
		return true, nil
	case missing:
		l.missing = append(l.missing, name)
		return true, nil
	}
	return false, err
}

// ask asks a leader for the offsets of spans. It returns the spans that have to be asked for again, and notes why.
func (l *spanLookup) ask(ctx context.Context, addr string, spans []*Span, note func(*Span, error)) (open []*Span) {
	// The end is asked for before the first record since a time. In the other order a record that is produced between
	// the two questions would be in no span.
	ctl := l.client.takeControl(addr)
	defer l.client.returnControl(ctl)
	ends, err := ctl.offsets(ctx, addr, spans, sarama.OffsetOldest, sarama.OffsetNewest, 0, max(0, l.since.UnixMilli()))
	if err != nil {
		note(spans[0], err)
		return spans
	}
	for i, s := range spans {
		first, end, oldest, since := ends[0][i], ends[1][i], ends[2][i], ends[3][i]
		problem := cmp.Or(first.Err, end.Err, oldest.Err, since.Err)
		if problem != sarama.ErrNoError {
			note(s, fmt.Errorf("partition %d: %w", s.Partition, problem))
			open = append(open, s)
			continue
		}
		s.First, s.End = first.Offset, max(first.Offset, end.Offset)
		if oldest.Offset >= 0 {
			s.Oldest = time.UnixMilli(oldest.Timestamp)
		}
		// Kafka may find nothing although there is such a record: it looks into one segment only, the first one that had a
		// record at or after since. For some minutes after DeleteRecords all records of that segment can be deleted, and
		// the segment be there. The span then begins with the log.
		s.From = s.First
		switch {
		case l.since.IsZero():
		case since.Offset >= 0:
			s.From = min(max(s.First, since.Offset), s.End)
		case oldest.Offset >= 0 && s.Oldest.Before(l.since):
			s.From = s.End
		}
		l.found = append(l.found, *s)
	}
	return open
}

// offsets asks a leader several times for an offset in each span: by timestamp, or for the first or the last one.
func (c *control) offsets(ctx context.Context, addr string, spans []*Span, which ...int64) (out [][]*sarama.OffsetResponseBlock, err error) {
	for _, at := range which {
		req := sarama.NewOffsetRequest(c.conf.Version)
		for _, s := range spans {
			req.AddBlock(s.Topic, s.Partition, at, 1)
		}
		var res *sarama.OffsetResponse
		err := c.askBroker(ctx, addr, func(b *sarama.Broker) (err error) {
			res, err = b.GetAvailableOffsets(req)
			return err
		})
		if err != nil {
			return nil, err
		}
		var blocks []*sarama.OffsetResponseBlock
		for _, s := range spans {
			block := res.GetBlock(s.Topic, s.Partition)
			if block == nil {
				return nil, fmt.Errorf("partition %d: %w", s.Partition, errUnanswered)
			}
			blocks = append(blocks, block)
		}
		out = append(out, blocks)
	}
	return out, nil
}

// compacted reports which topics Kafka compacts: of records with the same key only the last one is sure to be there.
// A topic is missing in the map if its configuration may not be read.
func (c *control) compacted(ctx context.Context, topics []string) (map[string]bool, error) {
	settings, err := c.describe(ctx, topics, []string{"cleanup.policy"})
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for topic, values := range settings {
		if policy, ok := values["cleanup.policy"]; ok {
			out[topic] = slices.Contains(strings.Split(policy, ","), "compact")
		}
	}
	return out, nil
}

// leaderIn returns the address of a partition's leader, from the answer to the last look-up.
func (c *control) leaderIn(md *sarama.TopicMetadata, partition int32) (string, error) {
	if md == nil {
		return "", sarama.ErrUnknownTopicOrPartition
	}
	if md.Err != sarama.ErrNoError && md.Err != sarama.ErrLeaderNotAvailable {
		return "", md.Err
	}
	for _, part := range md.Partitions {
		if part.ID != partition {
			continue
		}
		if addr, ok := c.brokers[part.Leader]; ok {
			return addr, nil
		}
		return "", sarama.ErrLeaderNotAvailable
	}
	return "", sarama.ErrUnknownTopicOrPartition
}

// patience decides how long the same question is asked again. Errors that pass end it after AwayBudget, others after
// maxUnclassified of them, and a permission that is missing at once.
type patience struct {
	client       *Client
	began        time.Time // of the first error
	tries        int
	unclassified int
}

// progress forgets the errors so far.
func (p *patience) progress() { *p = patience{client: p.client} }

// wait returns nil after a pause, or at the end of ctx, if the question is to be asked again. Otherwise it returns
// why not.
func (p *patience) wait(ctx context.Context, err error) error {
	cfg := &p.client.cluster.cfg
	if p.tries == 0 {
		p.began = time.Now()
	}
	passing := isTransient(err) || errors.Is(err, errQuiet) || errors.Is(err, errStarting) || errors.Is(err, errPartial)
	if !passing {
		p.unclassified++
	}
	switch {
	case p.client.dialer.ctx.Err() != nil:
		return errCut
	case kindOf(err).class == denied, p.unclassified > maxUnclassified, time.Since(p.began) >= cfg.AwayBudget:
		return err
	}
	p.client.pause(ctx, doubling(cfg.RetryMin, cfg.RetryMax, p.tries))
	p.tries++
	return nil
}

// pause waits for t, until ctx ends, or until the connections are cut.
func (c *Client) pause(ctx context.Context, t time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, t)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-c.dialer.ctx.Done():
	}
}
