package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/credential"
)

func (v *validation) tls(t *TLS) {
	if !t.Enabled && !v.c.HasReceiver() {
		for path, text := range map[string]string{"ca_file": t.CAFile, "cert_file": t.CertFile, "key_file": t.KeyFile} {
			if text != "" {
				v.report("tls."+path, "is set, but tls.enabled is false; set tls.enabled to true, or remove this")
			}
		}
		return
	}
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		v.report("tls.key_file", "is empty, but tls.cert_file is set; name the file with the key of the certificate")
	case t.CertFile == "" && t.KeyFile != "":
		v.report("tls.cert_file", "is empty, but tls.key_file is set; name the file with the certificate")
	}
}

// checkCommand checks a command that prints a secret.
func checkCommand(command []string) string {
	if len(command) > 0 && command[0] == "" {
		return "has an empty name; write the name of a program, and its arguments, e.g. [cat, /run/token]"
	}
	return ""
}

var mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", credential.MSK}

func (v *validation) sasl(s *SASL) {
	path := func(name string) string { return "kafka.sasl." + name }
	if s.Password != "" && s.PasswordFile != "" {
		v.report(path("password_file"), fmt.Sprintf("kafka.sasl.password is set too (%s); remove one of the two", v.c.Origin(path("password"))))
	}
	if s.Mechanism == "" {
		for name, isSet := range map[string]bool{
			"user": s.User != "", "password": s.Password != "", "password_file": s.PasswordFile != "", "token_url": s.TokenURL != "", "scopes": len(s.Scopes) > 0,
			"token_command": len(s.TokenCommand) > 0,
		} {
			if isSet {
				v.report(path(name), "is set, but kafka.sasl.mechanism is empty; write "+strings.Join(mechanisms, " | ")+" there, or remove this")
			}
		}
		return
	}
	if !slices.Contains(mechanisms, s.Mechanism) {
		v.report(path("mechanism"), fmt.Sprintf("%s is unknown; write %s", quote(s.Mechanism), strings.Join(mechanisms, " | ")))
		return
	}
	if msk := s.Mechanism == credential.MSK; msk || len(s.TokenCommand) > 0 && s.Mechanism == "OAUTHBEARER" {
		v.report(path("token_command"), checkCommand(s.TokenCommand))
		why := "is set, and kafka.sasl.token_command prints the token; remove one of the two"
		if msk {
			why = "is set, and AWS_MSK_IAM uses credentials of AWS; remove it (docs/security.md)"
			if credential.MSKRegion(v.c.Kafka.Brokers) == "" {
				v.report(path("mechanism"), "AWS_MSK_IAM needs the region: no address in kafka.brokers names it; set AWS_REGION in the environment of the daemon")
			}
			if !v.c.TLS.Enabled {
				v.report("tls.enabled", "is false, and Amazon MSK takes AWS_MSK_IAM only with TLS; set it to true")
			}
		}
		for name, isSet := range map[string]bool{
			"user": s.User != "", "password": s.Password != "", "password_file": s.PasswordFile != "", "token_url": s.TokenURL != "", "scopes": len(s.Scopes) > 0,
		} {
			if isSet {
				v.report(path(name), why)
			}
		}
		return
	}
	if s.User == "" {
		v.report(path("user"), "is empty; "+s.Mechanism+" needs one")
	}
	if s.Password == "" && s.PasswordFile == "" {
		v.report(path("password"), "is empty; "+s.Mechanism+" needs one, here or in kafka.sasl.password_file")
	}
	if s.Mechanism != "OAUTHBEARER" {
		for name, isSet := range map[string]bool{"token_url": s.TokenURL != "", "scopes": len(s.Scopes) > 0, "token_command": len(s.TokenCommand) > 0} {
			if isSet {
				v.report(path(name), "is only for OAUTHBEARER, and kafka.sasl.mechanism is "+s.Mechanism+"; remove it")
			}
		}
		return
	}
	if u, err := url.Parse(s.TokenURL); err == nil && u.User != nil {
		v.report(path("token_url"), "contains a user; write the user in kafka.sasl.user and kafka.sasl.password")
	} else if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		v.report(path("token_url"), quote(redactQuery(s.TokenURL))+" is not the URL of a token server; write e.g. https://login.example/oauth2/token")
	}
}
