/*
 * How a slot, its daemons and Kafka work together, in the smallest form: ARCHITECTURE.md has the rules and terms,
 * test/model/README.md says what is modelled and what is not. Nothing here is compiled into the product.
 *
 * Three transactions of two rows, two partitions, one slot. A row has a place on its timeline, 1 to 6, and an id: the
 * place on timeline 1, the place + 6 on timeline 2 (after a failover). Sets of rows are bits: of ids 12, of places 6.
 * Transaction t has commit LSN t and end LSN t+1, which is the next one's commit LSN: adjacent commits. The slot's
 * position c means: transactions with commit LSN < c are skipped.
 *
 * One process; every step is one d_step, so that an interleaving of steps is a history. No step repeats without
 * a cause, so every run ends; at its end everything must be delivered and confirmed.
 */
#ifndef FAULTS
#define FAULTS 2        /* crashes of daemon or server, and clean ends, together */
#endif
#ifndef SESSIONS
#define SESSIONS 4      /* maximum number; 1 + the events that end one */
#endif
#define ROWS 6
#define ALL 63          /* places */
#ifndef IN1
#define IN1 1754       /* ids that go to partition 1: 2 4 5 and, of timeline 2, 7 8 10 11 (places 1 2 4 5) */
#endif

/* phases of a session */
#define NONE 0
#define FENCE 1         /* the slot is ours, the previous session did not end cleanly */
#define RECORD 2        /* the first position record is in flight */
#define STREAM 3
#define DRAIN 4         /* ending: reads no more */
#define CLEAN 5         /* the clean record is acknowledged */
#define FINDING 6       /* what was found is written into the record */
#define STOPPED 7       /* status 79 */

typedef Parts { short at[3] }          /* by partition; 2 is the dead-letter topic */
typedef Rec {                         /* the position record */
	byte gen, from;                   /* generation; the session that wrote it */
	byte known;                       /* sessions whose producer ids it names, as bits */
	byte acked;                       /* id of the last row of the acknowledged prefix, 0: none */
	byte confirm;
	bit tl2, clean;
#ifdef HIDE
	bit found                         /* rows may have been hidden: no session streams */
#endif
}

/* the server */
bit tl2 = 0;            /* promoted: timeline 2 */
byte fork = 3;          /* transactions up to this one are common to both timelines */
byte mem = 1, disk = 1; /* the slot's position */
/* Kafka */
Parts by[SESSIONS + 1]; /* what each session has appended */
Rec rec;                /* the newest position record; gen 0: there is none */
/* requests of dead sessions in flight */
Parts late[SESSIONS + 1];
Rec lrec;
/* the live session */
byte s = 0, phase = NONE;
byte next = 0;          /* the place that is read next */
byte sent = 0, app = 0, ack = 0; /* places; app: appended, ack: acknowledged, or skipped */
byte dl = 0;            /* places sent as dead letters */
byte base = 0;          /* up to this place everything is in Kafka, by the record before this session */
byte found = 0;         /* places whose records were read in Kafka, in any partition */
bit doubt = 0;          /* Kafka may have rows of earlier sessions that base does not cover */
bit unread = 0;         /* the ends of the partitions must be read before the next row */
Rec my, wr;             /* the record as far as we know; the one in flight */
byte wst = 0;           /* 0 none in flight, 1 sent, 2 appended */
byte refused = 0;       /* places that Kafka has refused in this process */
bit fp = 0;             /* routing in force; a topic that has grown sends keys elsewhere, too */
bit fixed = 0;          /* the cause of poison has been removed */
/* the environment */
byte faults = FAULTS;
bit forked = 0, moved = 0, lost = 0;
bit upgraded = 0;       /* pg_upgrade: timeline 2 stands for the new system, without a common past */
byte reroutes = 0;
/* for the properties */
#ifdef REPEATS_ALLOWED
bit excused = 1;
#else
bit excused = 0;        /* repeats are allowed: the evidence against them was lost */
#endif
short kept = 0;         /* ids in requests that survived the fence */
short reported = 0;     /* phantoms found by reading the ends of partitions */
bit ended = 0;
#ifdef ERASE                    /* Kafka deletes the oldest record of a partition once: retention, compaction, or look_back */
bit erased = 0;
short gone = 0;                 /* ids without a record */
short counts[2];                /* ids whose record counts: no record of an earlier row follows it in its partition */
short newest[2];                /* the last record of each partition, as a bit */
byte dirty = 0;                 /* partitions to which this session has sent a row, as bits */
#ifdef M_ANY_RECORD
#define COUNTS(p)     ~gone
#else
#define COUNTS(p)     ((p) == 2 -> 4095 : counts[(p) % 2])
#endif
#ifdef M_NO_SUFFIX
#define FOLLOWS(p)    0
#else
#define FOLLOWS(p)    (dirty & (1 << (p)))
#endif
#else
#define COUNTS(p)     4095
#define FOLLOWS(p)    0
#endif
#ifdef PAUSE
byte paused = 0;                /* 1: no catalog check passes, so nothing more may be confirmed; 2: again */
#define MAYCONFIRM(c) (paused == 1 -> my.confirm : (c))
#elif defined(HIDE)             /* the publication is altered and back while transaction 3 is committed */
bit unsent = 0, act = 0;        /* act: the catalogs show it */
bit seen3 = 0;                  /* a session has read a row of transaction 3 */
byte told = 0;                  /* 1: a session has found the alteration, and ended; 2: it was started again */
byte guarded = 0;               /* the stream was complete up to this place: a catalog check that began there has passed */
#ifdef M_UNGUARDED
#define MAYCONFIRM(c) (c)
#else
#define MAYCONFIRM(c) MIN(c, END(guarded))
#endif
#else
#define MAYCONFIRM(c) (c)
#endif
#ifdef HIDE
#define HIDDEN        (unsent && next > 4)
#define CHECKED       (guarded == next - 1)
#else
#define HIDDEN        0
#define CHECKED       1
#endif
#ifdef M_STALE_BROKER
Rec before;                     /* the newest record before rec, which a broker that does not lead any more takes for the newest */
#endif
short row, old, set, place; /* of one step; 0 between steps */

#define BIT(i)        (1 << ((i) - 1))
#define LOWEST(m)     ((m) & -(m))
#define CONF(c)       ((1 << (2 * ((c) - 1))) - 1)                 /* places at or below slot position c */
#define COMMON        ((1 << (2 * fork)) - 1)
#define IDS(m)        (((m) & COMMON) | (((m) & (ALL & ~COMMON)) << 6)) /* ids of places on the present history */
#define HIST(m)       (((m) & COMMON) | (((m) >> 6) & (ALL & ~COMMON))) /* places of ids that are on it */
#define ID(i)         ((i) > 2 * fork -> (i) + 6 : (i))
#define PREFIX(m)     (!((m) & 1) -> 0 : (!((m) & 2) -> 1 : (!((m) & 4) -> 2 : (!((m) & 8) -> 3 : (!((m) & 16) -> 4 : (!((m) & 32) -> 5 : 6))))))
#define HIGHEST(m)    ((m) & 32 -> 6 : ((m) & 16 -> 5 : ((m) & 8 -> 4 : ((m) & 4 -> 3 : ((m) & 2 -> 2 : ((m) & 1 -> 1 : 0))))))
#define HIGHEST12(m)  ((m) > 63 -> 6 + HIGHEST((m) >> 6) : HIGHEST(m))
#define MAX(a, b)     ((a) > (b) -> (a) : (b))
#define MIN(a, b)     ((a) < (b) -> (a) : (b))
#define TX(i)         (((i) + 1) / 2)
#define END(i)        ((i) / 2 + 1)                                /* end LSN of the last transaction that is whole in a prefix of i */
#define PIDS(p)       ((p) == 1 -> (fp -> 4095 & ~IN1 : IN1) : (fp -> IN1 : 4095 & ~IN1))
#define PART(i)       ((PIDS(1) >> (ID(i) - 1)) & 1)
#define MINE(p)       ((p) == 2 -> dl : HIST(PIDS(p)) & ~dl)       /* places of this session that go to p */
#define HIGHER(b)     ((b) < 64 -> (63 & ~((b) | ((b) - 1))) | ((b) <= COMMON -> 4032 : 0) : (4032 & ~((b) | ((b) - 1))))

/* pg_upgrade refuses unless the slot has consumed everything */
#ifdef M_UPGRADE_UNCONSUMED
#define CONSUMED      (mem > 1)
#else
#define CONSUMED      (mem == 4)
#endif

/* Sums over sessions. */
#define BY(n, p)      by[n].at[p]
#if SESSIONS == 4
#define HAS(p)        (BY(1,p) | BY(2,p) | BY(3,p) | BY(4,p))
#define KNOWN(k, p)   ((k & 2 -> BY(1,p) : 0) | (k & 4 -> BY(2,p) : 0) | (k & 8 -> BY(3,p) : 0) | (k & 16 -> BY(4,p) : 0))
#elif SESSIONS == 7
#define HAS(p)        (BY(1,p) | BY(2,p) | BY(3,p) | BY(4,p) | BY(5,p) | BY(6,p) | BY(7,p))
#define KNOWN(k, p)   ((k & 2 -> BY(1,p) : 0) | (k & 4 -> BY(2,p) : 0) | (k & 8 -> BY(3,p) : 0) | (k & 16 -> BY(4,p) : 0) | \
                       (k & 32 -> BY(5,p) : 0) | (k & 64 -> BY(6,p) : 0) | (k & 128 -> BY(7,p) : 0))
#endif
#define EVERYWHERE    (HAS(0) | HAS(1) | HAS(2))

/* acked of a record as a place on the present history, at most the fork */
#if defined(M_TIMELINE) || defined(M_SYSTEM) || defined(M_ADOPT_KEEPS)
#define ACKED(a)      ((a) > 6 -> (a) - 6 : (a))
#define TAILSET(m)    (((m) & ALL) | ((m) >> 6))
#else
#define ACKED(a)      ((a) > 6 -> (a) - 6 : MIN((a), 2 * fork))
#define TAILSET(m)    HIST(m)
#endif
/* confirm of a record: on timeline 2 a promise about timeline 1 is valid only up to the fork */
#if defined(M_CONFIRM_OF_OTHER_TIMELINE) || defined(M_START)
#define CUT(r)        r.confirm
#else
#define CUT(r)        (tl2 && !r.tl2 && !upgraded -> MIN(r.confirm, fork + 1) : r.confirm)
#endif

/* No loss: rows that the server will not send again are in Kafka. It can break only where the slot moves or history changes. */
inline safe() {
	assert((moved && (phase < STREAM || phase == STOPPED)) || !(IDS(CONF(mem)) & ~EVERYWHERE))    /* LOSS */
}

/* States that the runs without a mutant must reach, or they would prove little: the assertion must fail. */
#ifndef SOMETIMES
#define SOMETIMES 0
#endif
inline sometimes(n) {
	assert(SOMETIMES != n)                             /* REACHED */
}

inline copy(to, src) {
	to.gen = src.gen; to.from = src.from; to.known = src.known; to.acked = src.acked;
	to.confirm = src.confirm; to.tl2 = src.tl2; to.clean = src.clean;
#ifdef HIDE
	to.found = src.found
#endif
}

inline zero(r) {
	r.gen = 0; r.from = 0; r.known = 0; r.acked = 0; r.confirm = 0; r.tl2 = 0; r.clean = 0;
#ifdef HIDE
	r.found = 0
#endif
}

/* session n appends the row with bit b to p */
inline append(n, q) {
	if
	:: EVERYWHERE & row ->
		printf("  partition %d: %d again, by session %d\n", q, HIGHEST12(row), n);
#ifndef AT_LEAST_ONCE
		assert(excused || (kept & row));                 /* REPEAT */
#endif
		sometimes(1)
	:: else ->
		printf("  partition %d: %d, by session %d\n", q, HIGHEST12(row), n);
#ifndef REROUTE
		assert(q == 2 || !(HAS(q) & HIGHER(row)))        /* ORDER */
#endif
	fi;
	by[n].at[q] = by[n].at[q] | row;
#ifdef ERASE
	gone = gone & ~row;
	if
	:: q < 2 -> counts[q] = (counts[q] & (row | (row - 1))) | row; newest[q] = row
	:: else
	fi
#endif
}

/* the session has ended; its requests stay in flight */
inline die() {
	late[s].at[0] = IDS(sent & ~app & MINE(0));
	late[s].at[1] = IDS(sent & ~app & MINE(1));
	late[s].at[2] = IDS(sent & ~app & MINE(2));
	printf("session %d is cut; rows on the way, as bits: %d %d, letters %d; record on the way: %d\n", s, late[s].at[0], late[s].at[1], late[s].at[2], wst == 1);
	if
	:: wst == 1 -> copy(lrec, wr)
	:: else
	fi;
	over()
}

inline over() {
	phase = NONE; next = 0; sent = 0; app = 0; ack = 0; dl = 0; base = 0; found = 0; doubt = 0; unread = 0;
#ifdef ERASE
	dirty = 0;
#endif
#ifdef HIDE
	guarded = 0;
#endif
	wst = 0; zero(my); zero(wr)
}

/* A record reaches the position topic. A later reader takes the highest generation, the newest of it. */
inline publish(r) {
#ifdef M_STALE_BROKER
	copy(before, rec);
#endif
	printf("  position topic: generation %d of session %d: sessions %d, acked %d, confirm %d, clean %d\n", r.gen, r.from, r.known, r.acked, r.confirm, r.clean);
	if
#ifndef M_GENERATION
	:: r.gen < rec.gen -> skip
#endif
#ifndef M_SAME_GENERATION
	:: r.gen == rec.gen && r.from != rec.from ->       /* two sessions that did not see each other: both count */
		if
		:: r.tl2 < rec.tl2 || r.confirm < rec.confirm || ACKED(r.acked) < ACKED(rec.acked) -> rec.known = rec.known | r.known
		:: else -> set = rec.known; copy(rec, r); rec.known = rec.known | set; set = 0
		fi;
		rec.clean = 0
#endif
	:: else -> copy(rec, r)
	fi
}

inline stream() {
	phase = STREAM;
#ifdef M_START
	sent = CONF(MAX(mem, my.confirm));                 /* a remembered LSN */
#else
	sent = CONF(mem);
#endif
	next = PREFIX(sent) + 1; app = sent; ack = sent;
#ifdef HIDE
	guarded = next - 1;
#endif
	printf("session %d streams from slot position %d\n", s, mem);
	safe()
}

/* how far this session's own acks allow the slot to be confirmed */
#if defined(M_HIGHEST_ACK)
#define OWN           END(HIGHEST(ack))
#elif defined(M_KEEPALIVE)
#define OWN           END(next - 1)
#elif defined(M_ZERO_FLUSH)
#define OWN           (PREFIX(ack) == PREFIX(CONF(mem)) -> END(next - 1) : END(PREFIX(ack)))
#else
#define OWN           MAYCONFIRM(END(PREFIX(ack)))
#endif
#ifdef M_ACKED_AHEAD
#define OWNACKED      PREFIX(sent)
#else
#define OWNACKED      PREFIX(ack)
#endif
#ifdef M_CONFIRM_AHEAD
#define OWNCONFIRM    END(next - 1)
#else
#define OWNCONFIRM    OWN
#endif
#if defined(AT_LEAST_ONCE) || defined(M_TELL_FIRST)
#define TELL          OWN
#elif defined(M_CONFIRM_AHEAD)
#define TELL          my.confirm
#else
#define TELL          MIN(my.confirm, OWN)
#endif

#ifdef M_SETTLED_EARLY
#define SETTLED       (ack != 0)
#else
#define SETTLED       (PREFIX(ack) == ROWS)
#endif
#ifdef M_CLEAN_UNSETTLED
#define CLEANLY       1
#else
#define CLEANLY       (!doubt || PREFIX(ack) == ROWS)
#endif

inline write(cleanly) {
	copy(wr, my);
	wr.clean = cleanly; wr.tl2 = tl2; wr.confirm = MAX(my.confirm, OWNCONFIRM);
	if
	:: OWNACKED > ACKED(my.acked) -> wr.acked = ID(OWNACKED)
	:: else
	fi;
	if
#ifndef FAILOVER                /* there the record keeps more of them, to report phantoms */
	:: SETTLED -> wr.known = 1 << s                    /* no row of another session is in doubt */
#endif
	:: else
	fi;
	wst = 1
}

/* Is the row at place i dropped? It is at or before the acked position of the record, or its own record was read. */
#if defined(M_ROW_LSN)        /* rows 3 and 4 were written before 1 and 2, but committed after them */
#define LSN(i)        ((i) == 0 -> 0 : ((i) < 3 -> 5 : ((i) < 5 -> (i) - 2 : (i) + 2)))
#define COVERED(i)    (LSN(i) <= LSN(base))
#elif defined(M_END_LSN)      /* commit LSN <= end LSN of the last one */
#define COVERED(i)    (base > 0 && TX(i) <= TX(base) + 1)
#else
#define COVERED(i)    ((i) <= base)
#endif
#ifdef AT_LEAST_ONCE
#define INKAFKA(i)    0
#else
#define INKAFKA(i)    (COVERED(i) || ((found & BIT(i)) && !FOLLOWS(PART(i))))
#endif

#ifdef M_OUT_OF_ORDER           /* a later request overtakes an earlier one: no idempotent producer */
#define FIRST(m)      BIT(HIGHEST(m))
#else
#define FIRST(m)      LOWEST(m)
#endif
#ifdef M_REFUSAL_FORGOTTEN
#define REFUSED(b)    refused
#else
#define REFUSED(b)    (refused | (b))
#endif
#define SENDS(p)      (phase == STREAM && next <= ROWS && !(refused & BIT(next)) && PART(next) == p && !HIDDEN)
#ifdef M_PAST_LETTERS            /* the cause of a dead letter may have been removed when its row is read again */
#define LETTERS       0
#else
#define LETTERS       (dl & ~ack)                      /* in flight; later rows are not sent before they are acknowledged */
#endif
#ifdef POISON
#define POISONED      (fixed -> 0 : BIT(3) | BIT(4))   /* one in each partition */
#else
#define POISONED      0
#endif

#ifdef M_FOREIGN
#define FOREIGN       8                                /* a record of another slot is there too: place 4 */
#else
#define FOREIGN       0
#endif
#ifdef M_SILENT_LOOK_BACK
#define NOTFOUND      ALL
#else
#define NOTFOUND      0
#endif
#define PHANTOMS(p)   (upgraded -> 0 : HAS(p) & ~IDS(ALL))
#define PLACES(p)     TAILSET((KNOWN(my.known, p)) & COUNTS(p))
#ifdef M_INFER                  /* the end of a partition proves all earlier rows of that partition */
#define UPTO(p)       ((1 << HIGHEST(PLACES(p))) - 1)
#define FOUND         ((UPTO(0) & HIST(PIDS(0))) | (UPTO(1) & HIST(PIDS(1))) | PLACES(2))
#elif defined(M_ONE_PARTITION)  /* only the partition where a row goes now */
#define FOUND         ((PLACES(0) & HIST(PIDS(0))) | (PLACES(1) & HIST(PIDS(1))) | PLACES(2))
#else
#define FOUND         (PLACES(0) | PLACES(1) | PLACES(2))
#endif

/* The ends of all partitions are read in one step: only late requests could be appended in between, which may as well come after. */
#define READS \
	:: d_step { phase == STREAM && unread && next <= ROWS -> \
		found = FOUND | FOREIGN; unread = 0; \
		printf("session %d has read the ends: rows at places, as bits: %d\n", s, found); \
		reported = reported | ((KNOWN(my.known, 0) | KNOWN(my.known, 1)) & ~IDS(ALL)) }

#ifdef HIDE
#define READ3         seen3 = seen3 || next > 4
#else
#define READ3         skip
#endif
#ifdef ERASE
#define SENT(p)       dirty = dirty | (1 << (p))
#define ERASES(p) \
	:: d_step { !erased && counts[p] -> row = LOWEST(counts[p]); printf("KAFKA deletes %d of partition %d\n", HIGHEST12(row), p); \
		counts[p] = counts[p] & ~row; gone = row; erased = 1; excused = 1; row = 0 }
#else
#define SENT(p)       skip
#endif

#define ROW(p) \
	:: d_step { SENDS(p) && !unread && (!LETTERS || INKAFKA(next)) -> \
		row = BIT(next); sent = sent | row; READ3; \
		if \
		:: INKAFKA(next) -> drops(); \
			if \
			:: mem < rec.confirm && (found & row) -> sometimes(3) \
			:: else \
			fi \
		:: else -> printf("session %d sends %d\n", s, ID(next)); SENT(p) \
		fi; \
		next++; row = 0 }

#define APPEND(p) \
	:: d_step { phase >= STREAM && (sent & ~app & MINE(p)) -> \
		row = FIRST(sent & ~app & MINE(p)); \
		if \
		:: p < 2 && (row & POISONED) -> printf("  partition %d refuses %d\n", p, ID(HIGHEST(row))); refused = REFUSED(row); die() \
		:: else -> place = row; row = IDS(row); append(s, p); app = app | place \
		fi; \
		row = 0; place = 0 }

#define ACK(p) \
	:: d_step { phase >= STREAM && (app & ~ack & MINE(p)) -> \
		ack = ack | LOWEST(app & ~ack & MINE(p)); printf("session %d: acked, as bits: %d\n", s, ack) }

#define LATE(n, p) \
	:: d_step { late[n].at[p] -> \
		row = LOWEST(late[n].at[p]); \
		if \
		:: p < 2 && (HIST(row) & POISONED) -> late[n].at[p] = 0 \
		:: else -> late[n].at[p] = late[n].at[p] & ~row; append(n, p) \
		fi; \
		row = 0 }
#ifdef POISON
#define LATES(n)      LATE(n, 0) LATE(n, 1) LATE(n, 2)
#else
#define LATES(n)      LATE(n, 0) LATE(n, 1)
#endif

inline drops() { printf("session %d drops %d\n", s, ID(next)); app = app | row; ack = ack | row }

/* The fence has ended. keep: partitions with one late request of the last session that sent. */
inline fenced(keep) {
	printf("session %d has waited; of those before it, requests may still come in partitions 0, 1 and the position topic (bits): %d\n", s, keep);
	old = 1;
	do
	:: old < s ->
#ifndef M_NO_FENCE
		kept = kept | ((keep & 1) -> late[old].at[0] : 0) | ((keep & 2) -> late[old].at[1] : 0);
		late[old].at[0] = ((keep & 1) -> late[old].at[0] : 0);
		late[old].at[1] = ((keep & 2) -> late[old].at[1] : 0);
		late[old].at[2] = 0;
#endif
		old++
	:: else -> break
	od;
	old = 0;
	if
	:: !(keep & 4) -> zero(lrec)
	:: else
	fi;
	load()
}

/* The slot is ours, and the late requests are known: read the position record, compare it with the server, follow it. */
inline load() {
#ifdef M_START_LOOKS_AFRESH
	act = 0;
#endif
	compare();
	if
	:: phase < FINDING -> begin()
	:: else
	fi
}

inline compare() {
	if
	:: rec.gen == 0 -> my.known = 0; my.confirm = mem
#ifndef M_SYSTEM
	:: rec.gen && upgraded && !rec.tl2 -> phase = STOPPED; sometimes(6); printf("session %d stops: 79, another system\n", s)
#endif
#ifdef HIDE
	:: rec.gen && (act || rec.found) ->
		phase = (rec.found -> STOPPED : FINDING); copy(my, rec); printf("session %d finds the alteration\n", s)
#endif
	:: else ->
		if
		:: mem > CUT(rec) ->
			assert(moved);                                 /* FALSE79 */
			sometimes(2);
			phase = STOPPED; printf("session %d stops: 79\n", s)
		:: else ->
			doubt = !rec.clean;
			unread = doubt || (forked && rec.acked > 2 * fork && rec.acked <= 6);
			base = ACKED(rec.acked);
			copy(my, rec);
			my.confirm = CUT(rec)
		fi
	fi;
	if
	:: phase < FINDING ->
		my.gen++; my.from = s; my.known = my.known | (1 << s); my.tl2 = tl2; my.clean = 0
	:: else
	fi
}

inline begin() {
	copy(wr, my); wst = 1;
#ifdef M_ROWS_BEFORE_RECORD
	stream()
#else
	phase = RECORD
#endif
}

/* A standby that has the first k transactions, and has synchronised the slot at c, is promoted. */
#define FAILOVER_TO(k, c) \
	:: d_step { !forked && faults && c <= mem -> \
		printf("FAILOVER: timeline 2 after transaction %d, slot at %d\n", k, c); forked = 1; faults--; \
		if \
		:: phase > NONE && phase < STOPPED -> die() \
		:: else \
		fi; \
		tl2 = 1; fork = k; mem = c; disk = c; safe() }

active proctype world() {
	do
	/* The slot becomes ours; the record is read after that. */
	:: d_step { phase == NONE && s < SESSIONS ->
		s++;
		printf("session %d: slot at %d; record: generation %d, confirm %d, acked %d, clean %d\n", s, mem, rec.gen, rec.confirm, rec.acked, rec.clean);
#ifdef AT_LEAST_ONCE
		stream()
#else
		if
		:: rec.gen && rec.clean -> load()
		:: else -> phase = FENCE
		fi
#endif
		}
#ifdef M_NO_FENCE
	:: d_step { phase == FENCE -> fenced(7) }
#else
	:: d_step { phase == FENCE -> fenced(0) }
#endif
#ifdef SHORT_FENCE
	:: d_step { phase == FENCE -> fenced(1) }
	:: d_step { phase == FENCE -> fenced(2) }
	:: d_step { phase == FENCE -> fenced(3) }
	:: d_step { phase == FENCE && lrec.gen -> fenced(4) }
	:: d_step { phase == FENCE && lrec.gen -> fenced(7) }
#endif

	/* The position record in flight. */
	:: d_step { wst == 1 -> publish(wr); wst = 2 }
	:: d_step { wst == 2 ->
		copy(my, wr); zero(wr); wst = 0;
		if
		:: phase == RECORD -> stream()
		:: phase == DRAIN && my.clean -> phase = CLEAN
#ifdef HIDE
		:: phase == FINDING && my.found -> die(); phase = STOPPED; told = MAX(told, 1); sometimes(8)
#endif
		:: else
		fi }
	:: d_step { lrec.gen -> publish(lrec); zero(lrec) }

#ifdef M_STALE_BROKER
	:: d_step { phase == FENCE && before.gen -> printf("session %d asks a broker that does not lead any more\n", s); copy(rec, before); fenced(0) }
#endif

#ifdef PAUSE
	:: d_step { !paused && phase == STREAM -> paused = 1; printf("PAUSE of the catalog checks\n") }
#endif
#ifdef HIDE
	:: d_step { !act && !unsent && !seen3 && rec.gen -> unsent = 1; act = 1; printf("ALTERED, and back: transaction 3 is hidden\n") }
	:: d_step { phase == STREAM && HIDDEN && next <= ROWS -> sent = sent | 48; app = app | 48; ack = ack | 48; next = 7 }
	:: d_step { (phase == STREAM || phase == DRAIN) && !CHECKED ->
		if
		:: act -> phase = FINDING; printf("session %d: a check finds the alteration\n", s)
		:: else -> guarded = next - 1
		fi }
#ifdef M_FINDING_FORGOTTEN
	:: d_step { phase == FINDING && wst == 0 -> die(); phase = STOPPED; told = MAX(told, 1) }
#else
	:: d_step { phase == FINDING && wst == 0 && !my.found -> copy(wr, my); wr.found = 1; wst = 1 }
#endif
	:: d_step { told && act -> act = 0; printf("THE TRACES have vanished\n") }
	:: d_step { phase == STOPPED && told == 1 -> phase = NONE; told = 2; printf("STARTED AGAIN\n") }
#endif

	/* Rows. */
	READS
	ROW(0)
	ROW(1)
	APPEND(0)
	APPEND(1)
	ACK(0)
	ACK(1)
	LATES(1)
	LATES(2)
	LATES(3)
#if SESSIONS > 4
	LATES(4)
	LATES(5)
	LATES(6)
#endif
#ifdef POISON
	APPEND(2)
	ACK(2)
	/* A row that was refused in this process is a dead letter. */
	:: d_step { phase == STREAM && next <= ROWS && (refused & BIT(next)) && !unread ->
		row = BIT(next); sent = sent | row;
		if
		:: INKAFKA(next) -> drops(); sometimes(4)
		:: else -> printf("session %d sends the letter %d\n", s, ID(next)); dl = dl | row
		fi;
		next++; row = 0 }
	:: d_step { !fixed && phase == NONE -> fixed = 1; printf("what made rows impossible is FIXED\n") }
#endif
#ifdef NO_TAIL
	/* Retention, compaction or look_back: only one partition's rows are found, or none. */
	:: d_step { phase == STREAM && unread -> unread = 0; excused = 1; found = NOTFOUND; printf("session %d finds nothing\n", s) }
	:: d_step { phase == STREAM && unread -> unread = 0; excused = 1; found = PLACES(0) | NOTFOUND; printf("session %d reads partition 0 only\n", s) }
	:: d_step { phase == STREAM && unread -> unread = 0; excused = 1; found = PLACES(1) | NOTFOUND; printf("session %d reads partition 1 only\n", s) }
#endif

	/* Confirmation. */
#ifndef AT_LEAST_ONCE
#if defined(M_WRITES_ALWAYS)
	:: d_step { phase == STREAM && wst == 0 -> write(0) }
#elif defined(M_PAUSE_STOPS_RECORDS)
	:: d_step { phase == STREAM && wst == 0 && OWNCONFIRM > my.confirm -> write(0) }
#else
	:: d_step { phase == STREAM && wst == 0 && (OWNACKED > ACKED(my.acked) || OWNCONFIRM > my.confirm) -> write(0) }
#endif
#ifdef M_CLEAN_EARLY
	:: d_step { phase == DRAIN && wst == 0 -> write(1) }
#else
	:: d_step { phase == DRAIN && wst == 0 && !(sent & ~ack) && CLEANLY && CHECKED -> write(1) }
	:: d_step { phase == DRAIN && wst == 0 && !(sent & ~ack) && !CLEANLY && TELL <= mem -> printf("session %d has ended\n", s); over() }
#endif
	:: d_step { phase == CLEAN && TELL <= mem -> printf("session %d has ended cleanly\n", s); over() }
#else
	:: d_step { phase == DRAIN && !(sent & ~ack) && TELL <= mem -> over() }
#endif
	:: d_step { phase >= STREAM && phase <= CLEAN && TELL > mem -> mem = TELL; printf("session %d tells the slot %d\n", s, mem); safe() }
	:: d_step { disk < mem -> disk = mem; printf("CHECKPOINT: the slot is saved at %d\n", disk) }

	/* Faults. */
	:: d_step { faults && phase > NONE && phase < STOPPED -> printf("KILL of the daemon\n"); faults--; refused = 0; die() }
	:: d_step { faults && phase != STOPPED ->
		faults--; mem = disk; printf("CRASH of the server: the slot is back at %d\n", mem);
		if
		:: phase > NONE -> die()
		:: else
		fi }
	:: d_step { faults && phase == STREAM -> faults--; phase = DRAIN; printf("session %d is told to end\n", s) }
	:: d_step { faults -> faults = 0 }                 /* no more of them */
#ifdef FAILOVER
	FAILOVER_TO(0, 1)
	FAILOVER_TO(1, 1)
	FAILOVER_TO(1, 2)
	FAILOVER_TO(2, 1)
	FAILOVER_TO(2, 2)
	FAILOVER_TO(2, 3)
#endif
#ifdef UPGRADE
	/* The new cluster has a new slot at its beginning; the old one is not used any more. Every row has to be in Kafka. */
	:: d_step { !forked && CONSUMED ->
		printf("UPGRADE: another system, with a new slot\n"); forked = 1; upgraded = 1;
		if
		:: phase > NONE && phase < STOPPED -> die()
		:: else
		fi;
		assert(!(ALL & ~EVERYWHERE));                      /* LOSS */
		tl2 = 1; fork = 0; mem = 1; disk = 1 }
	/* slot adopt --upgraded-from: the record is of the old system, and no session has the slot */
	:: d_step { upgraded && rec.gen && !rec.tl2 && (phase == NONE || phase == STOPPED) ->
		printf("ADOPTED\n"); phase = NONE;
		rec.gen++; rec.from = 0; rec.confirm = mem; rec.tl2 = 1;
#ifndef M_ADOPT_KEEPS
		rec.acked = 0;
#endif
		rec.known = 0; rec.clean = 1 }
#endif
#ifdef SLOT_MOVED
	:: d_step { !moved && rec.gen && phase == NONE && mem < 4 -> moved = 1; mem++; printf("ANOTHER CLIENT moves the slot to %d\n", mem) }
	:: d_step { !moved && rec.gen && phase == NONE && mem < 3 -> moved = 1; mem = mem + 2; printf("ANOTHER CLIENT moves the slot to %d\n", mem) }
#endif
#ifdef REROUTE
	:: d_step { reroutes < 2 && phase == NONE -> reroutes++; fp = !fp; printf("ROUTING changed, or a topic has grown\n") }
#endif
#ifdef ERASE
	ERASES(0)
	ERASES(1)
#endif
#ifdef RECORD_LOST
	:: d_step { !lost && phase == NONE && rec.gen -> lost = 1; zero(rec); excused = 1; printf("RECORD lost\n") }
#endif
#ifdef PAUSE
	:: else ->
		if
		:: d_step { paused == 1 -> paused = 2;
			assert(phase != STREAM || ACKED(my.acked) == PREFIX(ack)) }                        /* RECORDED */
		:: else -> break
		fi
#else
	:: else -> break
#endif
	od;
	skip;
	d_step {
		assert(phase == STOPPED || (phase == STREAM && mem == 4 && !(IDS(ALL) & ~EVERYWHERE)));  /* DRAINED */
#if !defined(SHORT_FENCE) && !defined(AT_LEAST_ONCE) && !defined(RECORD_LOST) && !defined(NO_TAIL)
		assert(phase == STOPPED || !(PHANTOMS(0) & ~reported));                                  /* PHANTOM */
		assert(phase == STOPPED || !(PHANTOMS(1) & ~reported));                                  /* PHANTOM */
#endif
#ifdef ERASE
		assert(!(HAS(0) & HIGHER(newest[0])));                                                    /* STALE */
		assert(!(HAS(1) & HIGHER(newest[1])));                                                    /* STALE */
#endif
		if
		:: phase == STREAM && reported -> sometimes(5)
		:: phase == STREAM && upgraded -> sometimes(7)
		:: else
		fi;
		ended = 1
	}
}

#ifdef LIVENESS
/* Every run reaches the end, and the assertions above: no step repeats for ever. */
ltl ends { <> ended }
#endif
