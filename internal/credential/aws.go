package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"
)

// AWSKeys are credentials of AWS.
type AWSKeys struct {
	ID, Secret, Session string
	Expires             time.Time // zero: they do not say it
}

// AWS returns the credentials of AWS that the environment has, or names (see [awsCredentials]).
func AWS(ctx context.Context, region string) (*AWSKeys, error) {
	return awsCredentials(ctx, nil, region)
}

var serviceHost = regexp.MustCompile(`(?:^|\.)(?:sqs|sns)(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)$`)

// ServiceRegion is the region of AWS that the host of a service names, or else that of the environment; "": there is
// none.
func ServiceRegion(host string) string {
	if match := serviceHost.FindStringSubmatch(host); match != nil {
		return match[1]
	}
	return environmentRegion()
}

func environmentRegion() string {
	return cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
}

// awsCredentials returns the credentials of the first of these that is there: the command, if one is given, which
// prints them in the format of credential_process; AWS_ACCESS_KEY_ID; AWS_WEB_IDENTITY_TOKEN_FILE (a service account
// of Kubernetes); the endpoint that AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI names (a container of ECS, a
// pod identity of EKS); the metadata of the EC2 instance. They are asked for again each time, because they expire.
func awsCredentials(ctx context.Context, command []string, region string) (*AWSKeys, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	keys, from, err := &AWSKeys{}, "", error(nil)
	switch env := os.Getenv; {
	case len(command) > 0:
		var text string
		from = "kafka.sasl.token_command"
		if text, err = Output(ctx, command, nil); err == nil {
			keys, err = parseKeys([]byte(text))
		}
	case env("AWS_ACCESS_KEY_ID") != "":
		from = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
		keys = &AWSKeys{ID: env("AWS_ACCESS_KEY_ID"), Secret: env("AWS_SECRET_ACCESS_KEY"), Session: env("AWS_SESSION_TOKEN")}
	case env("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		from = "AWS_WEB_IDENTITY_TOKEN_FILE"
		keys, err = webIdentity(ctx, env("AWS_WEB_IDENTITY_TOKEN_FILE"), region)
	case env("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" || env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "":
		from = "AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI"
		keys, err = containerKeys(ctx)
	default:
		from = "the metadata of an EC2 instance (nothing else is set: AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI)"
		keys, err = instanceKeys(ctx)
	}
	if err == nil && (keys.ID == "" || keys.Secret == "") {
		err = errors.New("an access key or its secret is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("credentials of AWS from %s: %w", from, err)
	}
	return keys, nil
}

// parseKeys reads the JSON of credential_process, and of the endpoints of containers and instances, which call the
// session token Token. The error does not repeat the text.
func parseKeys(text []byte) (*AWSKeys, error) {
	var keys struct { // encoding/json takes any case
		AccessKeyID, SecretAccessKey, SessionToken, Token string
		Expiration                                        time.Time
	}
	if json.Unmarshal(text, &keys) != nil {
		return nil, errors.New("not the JSON of credential_process: AccessKeyId, SecretAccessKey, SessionToken and Expiration")
	}
	return &AWSKeys{keys.AccessKeyID, keys.SecretAccessKey, keys.SessionToken + keys.Token, keys.Expiration}, nil
}

// webIdentity exchanges the token in a file for credentials of the role AWS_ROLE_ARN (AssumeRoleWithWebIdentity of AWS
// STS).
func webIdentity(ctx context.Context, file, region string) (*AWSKeys, error) {
	token, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	endpoint := os.Getenv("AWS_ENDPOINT_URL_STS")
	if endpoint == "" {
		endpoint = "https://" + stsHost(region)
	}
	name := os.Getenv("AWS_ROLE_SESSION_NAME")
	if name == "" {
		name = "outboxcdc"
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {os.Getenv("AWS_ROLE_ARN")},
		"RoleSessionName": {name}, "WebIdentityToken": {strings.TrimSpace(string(token))},
	}
	body, err := ask(ctx, http.DefaultTransport, http.MethodPost, endpoint, strings.NewReader(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	if err != nil {
		return nil, err
	}
	var answer struct {
		ID      string `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Secret  string `xml:"AssumeRoleWithWebIdentityResult>Credentials>SecretAccessKey"`
		Session string `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`

		Expires time.Time `xml:"AssumeRoleWithWebIdentityResult>Credentials>Expiration"`
	}
	if xml.Unmarshal(body, &answer) != nil {
		return nil, errors.New("the answer is not that of AWS STS")
	}
	return &AWSKeys{answer.ID, answer.Secret, answer.Session, answer.Expires}, nil
}

// stsHost is the host of AWS STS in the region of the environment, or else in the given one.
func stsHost(region string) string {
	region = cmp.Or(environmentRegion(), region)
	if strings.HasPrefix(region, "cn-") {
		return "sts." + region + ".amazonaws.com.cn"
	}
	return "sts." + region + ".amazonaws.com"
}

// containerKeys asks the endpoint of the container. Without TLS it must be on this machine: another one could be named
// to get the token of the container.
func containerKeys(ctx context.Context) (*AWSKeys, error) {
	address := os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if path := os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); path != "" {
		address = "http://169.254.170.2" + path
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && ip.String() != "fd00:ec2::23") {
		return nil, fmt.Errorf("%s is neither https nor an address of this machine", u.Host)
	}
	token := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	return keysOf(ask(ctx, direct, http.MethodGet, address, nil, "Authorization", token))
}

// instanceKeys asks the metadata of the EC2 instance (IMDSv2).
func instanceKeys(ctx context.Context) (*AWSKeys, error) {
	if strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
		return nil, errors.New("AWS_EC2_METADATA_DISABLED is true")
	}
	endpoint := strings.TrimSuffix(os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "/")
	if endpoint == "" {
		endpoint = "http://169.254.169.254"
	}
	token, err := ask(ctx, direct, http.MethodPut, endpoint+"/latest/api/token", nil, "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
	if err != nil {
		return nil, err
	}
	const header, roles = "X-Aws-Ec2-Metadata-Token", "/latest/meta-data/iam/security-credentials/"
	role, err := ask(ctx, direct, http.MethodGet, endpoint+roles, nil, header, string(token))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(role)), "\n")
	return keysOf(ask(ctx, direct, http.MethodGet, endpoint+roles+first, nil, header, string(token)))
}

func keysOf(text []byte, err error) (*AWSKeys, error) {
	if err != nil {
		return nil, err
	}
	return parseKeys(text)
}

// direct uses no proxy: the addresses are those of this machine.
var direct = &http.Transport{}

// ask sends a request with a header and returns the answer. The error has neither the answer nor the query.
func ask(ctx context.Context, transport http.RoundTripper, method, address string, body io.Reader, header, value string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok { // it contains the whole URL
			err = of.Err
		}
		return nil, fmt.Errorf("%s: %w", req.URL.Host, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the answer is %s", req.URL.Host, resp.Status)
	}
	return text, err
}
