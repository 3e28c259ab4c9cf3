package wire

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	natssink "github.com/outboxcdc/outboxcdc/sink/nats"
)

func openNATS(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (Receiver, error) {
	cfg, rcfg := now(), natssink.DefaultConfig()
	rcfg.Target = func() (natssink.Target, error) { return natsTarget(now()) }
	rcfg.Stream, rcfg.Timeout, rcfg.Name, rcfg.Logger = cfg.Receiver.Stream, cfg.Receiver.Timeout, cfg.ClientID(), log.With("component", "receiver")
	return natssink.New(rcfg, reg)
}

func natsTarget(cfg *config.Config) (t natssink.Target, err error) {
	if t.URL, err = cfg.ReceiverURL(); err != nil {
		return t, err
	}
	text, err := cfg.ReceiverSecret()
	if err != nil {
		return t, err
	}
	if text != "" {
		if t.Login, err = natssink.ParseCredentials([]byte(text)); err != nil {
			return t, cfg.Problem("receiver.secret_file", err.Error())
		}
	}
	t.TLS, err = clientTLS(cfg)
	return t, err
}
