package wire

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/sink/rabbitmq"
)

func openRabbitMQ(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (Receiver, error) {
	cfg, rcfg := now(), rabbitmq.DefaultConfig()
	rcfg.Target = func() (rabbitmq.Target, error) {
		t, err := ReceiverTarget(now())
		return rabbitmq.Target{URL: t.URL, TLS: t.TLS}, err
	}
	rcfg.Timeout, rcfg.Name, rcfg.Logger = cfg.Receiver.Timeout, cfg.ClientID(), log.With("component", "receiver")
	return rabbitmq.New(rcfg, reg)
}
