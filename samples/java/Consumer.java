import static java.nio.charset.StandardCharsets.UTF_8;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Books placed orders in a ledger, each exactly once. It may be killed at any time.
 *
 * <pre>DATABASE_URL=jdbc:postgresql://... BOOTSTRAP_SERVERS=localhost:9092 \
 * java -cp 'target/dependency/*' Consumer.java books outbox.event.order</pre>
 */
public class Consumer {
  // A record of the daemon moves the mark of its partition, or is a duplicate (0 rows). The upsert locks the mark until the
  // commit: a second consumer of the partition waits here. The position has version 1 or 2: another one becomes a NULL, which
  // fails. Epoch 0 is not known, and counts as the mark's.
  static final String MOVE_MARK = """
      INSERT INTO partition_marks AS mark (consumer, topic, partition, origin, epoch, timeline, commit_lsn, ordinal)
      SELECT ?, ?, ?, CASE WHEN p[1] IN ('1', '2') THEN array_to_string(p[2:4], ':') END, p[5]::bigint, p[6]::bigint,
             (left(p[7], 8) || '/' || right(p[7], 8))::pg_lsn, p[8]::bigint
      FROM string_to_array(?, ':') AS f,
           LATERAL (SELECT CASE f[1] WHEN '1' THEN f[:2] || ARRAY['0', '', '0'] || f[3:] ELSE f END AS p) AS parts
      ON CONFLICT (consumer, topic, partition, origin) DO UPDATE
      SET epoch = excluded.epoch, timeline = excluded.timeline, commit_lsn = excluded.commit_lsn, ordinal = excluded.ordinal
      WHERE (coalesce(nullif(excluded.epoch, 0), mark.epoch), excluded.timeline, excluded.commit_lsn, excluded.ordinal)
          > (mark.epoch, mark.timeline, mark.commit_lsn, mark.ordinal)""";
  static final String ADD_ID = "INSERT INTO processed_events (consumer, id) VALUES (?, ?) ON CONFLICT DO NOTHING";
  static final String BOOK = "INSERT INTO ledger (event_id, order_id, amount)"
      + " SELECT ?, (p ->> 'order')::bigint, (p ->> 'amount')::bigint FROM CAST(? AS jsonb) AS p";

  static int execute(Connection db, String sql, Object... values) throws SQLException {
    try (var statement = db.prepareStatement(sql)) {
      for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
      return statement.executeUpdate();
    }
  }

  static String header(ConsumerRecord<String, String> record, String name) {
    var header = record.headers().lastHeader(name);
    return header == null ? null : new String(header.value(), UTF_8);
  }

  static void process(Connection db, String group, ConsumerRecord<String, String> record) throws SQLException {
    String id = header(record, "id"), position = header(record, "outboxcdc-position");
    // A record that a command has sent has no position, or one outside the order (outboxcdc-recovered): only its id decides.
    // For that, the ids of the daemon's records are stored as well.
    if (position != null && header(record, "outboxcdc-recovered") == null
        && execute(db, MOVE_MARK, group, record.topic(), record.partition(), position) == 0) return;
    if (execute(db, ADD_ID, group, id) == 0) return;
    execute(db, BOOK, id, record.value());
  }

  public static void main(String[] args) throws SQLException {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", System.getenv("BOOTSTRAP_SERVERS"),
        "group.id", args[0],
        "auto.offset.reset", "earliest",
        "enable.auto.commit", false,
        "session.timeout.ms", 6000); // how long the partitions of a killed consumer wait
    try (var db = DriverManager.getConnection(System.getenv("DATABASE_URL"));
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      db.setAutoCommit(false);
      consumer.subscribe(List.of(args[1]));
      while (true) {
        var records = consumer.poll(Duration.ofSeconds(1));
        // One transaction for the marks, ids and effects of a partition.
        for (var partition : records.partitions()) {
          for (var record : records.records(partition)) process(db, args[0], record);
          db.commit();
        }
        // After the database: a crash before this line repeats the records, and the marks recognize them.
        if (!records.isEmpty()) consumer.commitAsync();
      }
    }
  }
}
