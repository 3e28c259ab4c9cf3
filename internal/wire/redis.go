package wire

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	redissink "github.com/outboxcdc/outboxcdc/sink/redis"
)

func openRedis(now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (Receiver, error) {
	cfg, rcfg := now(), redissink.DefaultConfig()
	rcfg.Target = func() (redissink.Target, error) { return redisTarget(now()) }
	rcfg.Timeout, rcfg.MaxLength, rcfg.WaitReplicas = cfg.Receiver.Timeout, cfg.Receiver.MaxLength, cfg.Receiver.WaitReplicas
	rcfg.Logger = log.With("component", "receiver")
	return redissink.New(rcfg, reg)
}

func redisTarget(cfg *config.Config) (t redissink.Target, err error) {
	if t.URL, err = cfg.ReceiverURL(); err != nil {
		return t, err
	}
	t.TLS, err = clientTLS(cfg)
	return t, err
}
