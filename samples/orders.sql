-- The application's own table. `outboxcdc setup apply` creates the table outbox beside it.
CREATE TABLE IF NOT EXISTS orders (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  amount bigint NOT NULL -- in cents
);
