package wire

import (
	"context"
	"log/slog"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/credential"
	awssink "github.com/outboxcdc/outboxcdc/sink/aws"
)

func openAWS(service awssink.Service, now func() *config.Config, reg prometheus.Registerer, log *slog.Logger) (Receiver, error) {
	cfg, rcfg := now(), awssink.DefaultConfig(service)
	rcfg.Target = func() (awssink.Target, error) { return awsTarget(now()) }
	rcfg.Timeout, rcfg.Name, rcfg.Logger = cfg.Receiver.Timeout, cfg.ClientID(), log.With("component", "receiver")
	return awssink.New(rcfg, reg)
}

func awsTarget(cfg *config.Config) (t awssink.Target, err error) {
	if t.URL, err = cfg.ReceiverURL(); err != nil {
		return t, err
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return t, cfg.Problem("receiver.url", "is no URL")
	}
	if t.Region = credential.ServiceRegion(u.Hostname()); t.Region == "" {
		return t, cfg.Problem("receiver.url", "names no region of AWS; set AWS_REGION in the environment of the daemon")
	}
	t.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		keys, err := credential.AWS(ctx, t.Region)
		if err != nil {
			return aws.Credentials{}, &awssink.CredentialError{Err: err}
		}
		return aws.Credentials{
			AccessKeyID: keys.ID, SecretAccessKey: keys.Secret, SessionToken: keys.Session, CanExpire: !keys.Expires.IsZero(), Expires: keys.Expires,
		}, nil
	})
	t.TLS, err = clientTLS(cfg)
	return t, err
}
