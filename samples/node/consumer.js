// Books placed orders in a ledger, each exactly once. It may be killed at any time.
//
//     DATABASE_URL=postgres://... BOOTSTRAP_SERVERS=localhost:9092 node consumer.js books outbox.event.order
import kafkajs from 'kafkajs'
import lz4 from 'lz4js'
import pg from 'pg'

// kafkajs reads gzip only. lz4 is the default of kafka.compression.
kafkajs.CompressionCodecs[kafkajs.CompressionTypes.LZ4] = () => ({
  compress: async ({ buffer }) => Buffer.from(lz4.compress(buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})

// A record of the daemon moves the mark of its partition, or is a duplicate (0 rows). The upsert locks the mark until the
// commit: a second consumer of the partition waits here. The position has version 1 or 2: another one becomes a NULL, which
// fails. Epoch 0 is not known, and counts as the mark's.
const moveMark = `
INSERT INTO partition_marks AS mark (consumer, topic, partition, origin, epoch, timeline, commit_lsn, ordinal)
SELECT $1, $2, $3, CASE WHEN p[1] IN ('1', '2') THEN array_to_string(p[2:4], ':') END, p[5]::bigint, p[6]::bigint,
       (left(p[7], 8) || '/' || right(p[7], 8))::pg_lsn, p[8]::bigint
FROM string_to_array($4, ':') AS f,
     LATERAL (SELECT CASE f[1] WHEN '1' THEN f[:2] || ARRAY['0', '', '0'] || f[3:] ELSE f END AS p) AS parts
ON CONFLICT (consumer, topic, partition, origin) DO UPDATE
SET epoch = excluded.epoch, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
WHERE (coalesce(nullif(excluded.epoch, 0), mark.epoch), excluded.timeline, excluded.commit_lsn, excluded.ordinal)
    > (mark.epoch, mark.timeline, mark.commit_lsn, mark.ordinal)`
const addId = 'INSERT INTO processed_events (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING'

const [group, topic] = process.argv.slice(2)
const db = new pg.Client({ connectionString: process.env.DATABASE_URL })
await db.connect()

async function isNew(partition, headers) {
  const position = headers['outboxcdc-position']
  // A record that a command has sent has no position, or one outside the order (outboxcdc-recovered): only its id decides.
  // For that, the ids of the daemon's records are stored as well.
  if (position && !('outboxcdc-recovered' in headers)) {
    const { rowCount } = await db.query(moveMark, [group, topic, partition, position.toString()])
    if (rowCount === 0) return false
  }
  return (await db.query(addId, [group, headers.id.toString()])).rowCount === 1
}

async function book(partition, record) {
  if (await isNew(partition, record.headers)) {
    const { order, amount } = JSON.parse(record.value)
    const entry = [record.headers.id.toString(), order, amount]
    await db.query('INSERT INTO ledger (event_id, order_id, amount) VALUES ($1, $2, $3)', entry)
  }
}

const kafka = new kafkajs.Kafka({ brokers: process.env.BOOTSTRAP_SERVERS.split(','), logLevel: kafkajs.logLevel.ERROR })
const consumer = kafka.consumer({
  groupId: group,
  sessionTimeout: 6000, // how long the partitions of a killed consumer wait
  heartbeatInterval: 2000,
})
// After an error that kafkajs has not survived, end: a supervisor starts the process again.
consumer.on(consumer.events.CRASH, () => process.exit(1))
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
await consumer.run({
  autoCommit: false,
  // A batch has the records of one partition. kafkajs processes one at a time, so all of them use one connection.
  eachBatch: async ({ batch: { partition, messages }, heartbeat }) => {
    await db.query('BEGIN')
    try {
      // One transaction for marks, ids and effects.
      for (const record of messages) await book(partition, record)
      await db.query('COMMIT')
    } catch (error) {
      await db.query('ROLLBACK')
      throw error
    }
    // After the database: a crash before this line repeats the batch, and the marks recognize it.
    const next = BigInt(messages.at(-1).offset) + 1n
    await consumer.commitOffsets([{ topic, partition, offset: next.toString() }])
    await heartbeat()
  },
})
