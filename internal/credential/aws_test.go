package credential

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var exampleKeys = AWSKeys{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}

// TestSigned: the request is the one that MSK's documentation describes. The signatures are those of our own earlier
// code, which had the key of the example in AWS' documentation of Signature Version 4.
func TestSigned(t *testing.T) {
	const common = "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20261127%2Feu-central-1" +
		"%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20261127T053000Z&X-Amz-Expires=900"
	now := time.Date(2026, 11, 27, 5, 30, 0, 0, time.UTC).In(time.FixedZone("", 3600))
	for session, want := range map[string]string{
		"": "&X-Amz-SignedHeaders=host&X-Amz-Signature=ed5a23ce34d46d0d75e026a058935ec9df85ba00dfecc039f59f8232f7820544",
		"IQoJb3JpZ2luX2VjEXAMPLE+/==": "&X-Amz-Security-Token=IQoJb3JpZ2luX2VjEXAMPLE%2B%2F%3D%3D&X-Amz-SignedHeaders=host" +
			"&X-Amz-Signature=b22d6b6fb55f2dee00bb100974d2c1fb68f41ada684d330f2b39a80312af29c2",
	} {
		keys := exampleKeys
		keys.Session = session
		if got, err := presign(t.Context(), &keys, "eu-central-1", now); got != common+want || err != nil {
			t.Errorf("%s, %v", got, err)
		}
	}
}

func TestMSKRegion(t *testing.T) {
	withoutAWS(t)
	for address, want := range map[string]string{
		"b-1.shop.abc123.c2.kafka.eu-central-1.amazonaws.com:9098":  "eu-central-1",
		"boot-x1.c3.kafka-serverless.us-east-1.amazonaws.com:9098":  "us-east-1",
		"b-1.shop.abc123.c2.kafka.cn-north-1.amazonaws.com.cn:9098": "cn-north-1",
		"kafka.example:9098": "",
		"b-1.shop.abc123.c2.kafka.eu-central-1.amazonaws.com.evil.example:80": "",
	} {
		if got := MSKRegion([]string{"proxy:1", address}); got != want {
			t.Errorf("%s: %q", address, got)
		}
	}
	t.Setenv("AWS_DEFAULT_REGION", "a")
	t.Setenv("AWS_REGION", "b")
	if got := MSKRegion(nil); got != "b" {
		t.Error(got)
	}
}

func TestServiceRegion(t *testing.T) {
	withoutAWS(t)
	for host, want := range map[string]string{
		"sqs.eu-central-1.amazonaws.com": "eu-central-1", "sqs.cn-north-1.amazonaws.com.cn": "cn-north-1", "sqs-fips.us-east-1.amazonaws.com": "us-east-1",
		"sqs.eu-central-1.api.aws": "eu-central-1", "vpce-1-2.sqs.eu-west-1.vpce.amazonaws.com": "eu-west-1",
		"127.0.0.1": "", "sqs.eu-central-1.amazonaws.com.evil.example": "",
	} {
		if got := ServiceRegion(host); got != want {
			t.Errorf("%s: %q", host, got)
		}
	}
	t.Setenv("AWS_DEFAULT_REGION", "a")
	if got := ServiceRegion("localhost"); got != "a" {
		t.Error(got)
	}
}

func TestSTSHost(t *testing.T) {
	withoutAWS(t)
	for region, want := range map[string]string{"eu-central-1": "sts.eu-central-1.amazonaws.com", "cn-north-1": "sts.cn-north-1.amazonaws.com.cn"} {
		if got := stsHost(region); got != want {
			t.Errorf("%s: %s", region, got)
		}
	}
	t.Setenv("AWS_REGION", "cn-northwest-1")
	if got := stsHost("eu-central-1"); got != "sts.cn-northwest-1.amazonaws.com.cn" {
		t.Error(got)
	}
}

// withoutAWS removes what this machine may have of AWS from the environment of a test.
func withoutAWS(t *testing.T) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
}

// fakeAWS is the endpoint of containers, the metadata of instances, and STS. Each answers who knows what it asks for.
func fakeAWS(t *testing.T) string {
	keys := `{"Code": "Success", "AccessKeyId": "ID-%s", "SecretAccessKey": "Geh3im", "Token": "T", "Expiration": "2026-11-27T12:00:00Z"}`
	answer := func(ok bool, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if !ok {
				w.WriteHeader(http.StatusForbidden)
			}
			fmt.Fprint(w, text) // a refusal as well: no error may repeat it
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		imds := req.Header.Get("X-Aws-Ec2-Metadata-Token") == "metadata"
		const roles = "/latest/meta-data/iam/security-credentials/"
		switch req.Method + " " + req.URL.Path {
		case "GET /container":
			answer(req.Header.Get("Authorization") == "pod", fmt.Sprintf(keys, "container"))(w, req)
		case "GET /moved":
			http.Redirect(w, req, "/container", http.StatusFound)
		case "PUT /latest/api/token":
			answer(req.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") != "", "metadata")(w, req)
		case "GET " + roles:
			answer(imds, "writer\n")(w, req)
		case "GET " + roles + "writer":
			answer(imds, fmt.Sprintf(keys, "instance"))(w, req)
		case "POST /":
			ok := req.FormValue("Action") == "AssumeRoleWithWebIdentity" && req.FormValue("RoleArn") == "arn:aws:iam::1:role/r" && req.FormValue("WebIdentityToken") == "service-account"
			answer(ok, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ID-sts</AccessKeyId>
				<SecretAccessKey>Geh3im</SecretAccessKey><SessionToken>T</SessionToken><Expiration>2026-11-27T12:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`)(w, req)
		default:
			answer(false, "Geh3im")(w, req)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestCredentials: where credentials come from, in this order, and what an error says.
func TestCredentials(t *testing.T) {
	withoutAWS(t)
	aws := fakeAWS(t)
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	printed := sh(`printf '{\n "Version": 1,\n "AccessKeyId": "ID-command", "SecretAccessKey": "Geh3im",\n "SessionToken": "T"}'`)
	for _, c := range []struct {
		env     map[string]string // with those of the cases before
		command []string
		id, err string
	}{
		{env: map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": aws + "/"}, id: "ID-instance"},
		{env: map[string]string{"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}, err: "refused"},
		{env: map[string]string{"AWS_EC2_METADATA_DISABLED": "true"}, err: "AWS_EC2_METADATA_DISABLED"},
		{env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://db.example/x?Geh3im"}, err: "db.example is neither https nor an address of this machine"},
		{env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws + "/container?Geh3im"}, err: "403 Forbidden"},
		{env: map[string]string{"AWS_CONTAINER_AUTHORIZATION_TOKEN": "pod"}, id: "ID-container"},
		{env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws + "/moved"}, err: "302 Found"},
		{env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": aws + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/no/such/file"}, err: "no such file"},
		{env: map[string]string{"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file("pod\n")}, id: "ID-container"},
		{env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": file("service-account\n"), "AWS_ENDPOINT_URL_STS": aws}, err: "403 Forbidden"},
		{env: map[string]string{"AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}, id: "ID-sts"},
		{env: map[string]string{"AWS_ACCESS_KEY_ID": "ID-env"}, err: "an access key or its secret is missing"},
		{env: map[string]string{"AWS_SECRET_ACCESS_KEY": "Geh3im", "AWS_SESSION_TOKEN": "T"}, id: "ID-env"},
		{command: printed, id: "ID-command"},
		{command: sh("echo Geh3im"), err: "not the JSON of credential_process"},
		{command: sh(`echo '{"SecretAccessKey": "Geh3im"}'`), err: "an access key or its secret is missing"},
		{command: sh(`echo '{"SecretAccessKey": "Geh3im"}'; echo Geh3im expired >&2; exit 1`), err: `"xxxxx expired"`},
	} {
		for name, value := range c.env {
			t.Setenv(name, value)
		}
		keys, err := awsCredentials(t.Context(), c.command, "eu-central-1")
		if c.err != "" {
			if keys != nil || err == nil || !strings.Contains(err.Error(), c.err) || !strings.HasPrefix(err.Error(), "credentials of AWS from ") || strings.Contains(err.Error(), "Geh3im") {
				t.Errorf("%v: %v, %v", c, keys, err)
			}
			continue
		}
		if err != nil || keys.ID != c.id || keys.Secret != "Geh3im" || keys.Session != "T" || keys.Expires.IsZero() != (c.id == "ID-env" || c.id == "ID-command") {
			t.Errorf("%v: %v, %v", c, keys, err)
		}
	}
	token, err := MSKToken(t.Context(), printed, "eu-central-1")
	if err != nil {
		t.Fatal(err)
	}
	signed, err := base64.RawURLEncoding.DecodeString(token)
	if ends, known := Expiry(token); err != nil || !strings.HasPrefix(string(signed), "https://kafka.eu-central-1.amazonaws.com/?Action=") || !known || time.Until(ends) < 14*time.Minute {
		t.Errorf("%s, %v, until %v", signed, err, ends)
	}
}
