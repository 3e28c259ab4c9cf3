package credential

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// MSK is the SASL mechanism AWS_MSK_IAM: Amazon MSK authenticates a client by IAM.
const MSK = "AWS_MSK_IAM"

// mskLife is how long a token for Amazon MSK may be used. A connection that it has opened lasts longer.
const mskLife = 15 * time.Minute

var mskBroker = regexp.MustCompile(`\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?$`)

// MSKRegion is the region of AWS that the address of a broker of Amazon MSK names, or AWS_REGION or AWS_DEFAULT_REGION
// of the environment; "" if none of them does.
func MSKRegion(brokers []string) string {
	for _, address := range brokers {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address
		}
		if match := mskBroker.FindStringSubmatch(host); match != nil {
			return match[1]
		}
	}
	return environmentRegion()
}

// MSKToken returns a token of OAUTHBEARER with which Amazon MSK authenticates a client by IAM: a URL that is signed
// with the credentials that command prints, or else with those of the environment (see [awsCredentials]), in base64.
// Signing asks nothing of AWS.
func MSKToken(ctx context.Context, command []string, region string) (string, error) {
	keys, err := awsCredentials(ctx, command, region)
	switch {
	case err != nil && len(command) == 0:
		return "", fmt.Errorf("%w; kafka.sasl.token_command may print others", err)
	case err != nil:
		return "", err
	}
	signed := presign(keys, "kafka."+region+".amazonaws.com", region, time.Now())
	return base64.RawURLEncoding.EncodeToString([]byte(signed + "&User-Agent=outboxcdc")), nil
}

// presign signs the request that MSK makes of a token, by Signature Version 4 of AWS ("Create a signed AWS API request"
// in the IAM User Guide, with the signature in the query).
func presign(keys *AWSKeys, host, region string, now time.Time) string {
	at := now.UTC().Format("20060102T150405Z")
	scope := at[:8] + "/" + region + "/kafka-cluster/aws4_request"
	query := url.Values{
		"Action":              {"kafka-cluster:Connect"},
		"X-Amz-Algorithm":     {"AWS4-HMAC-SHA256"},
		"X-Amz-Credential":    {keys.ID + "/" + scope},
		"X-Amz-Date":          {at},
		"X-Amz-Expires":       {fmt.Sprint(int(mskLife.Seconds()))},
		"X-Amz-SignedHeaders": {"host"},
	}
	if keys.Session != "" {
		query.Set("X-Amz-Security-Token", keys.Session)
	}
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20") // sorted by name
	nothing := sha256.Sum256(nil)
	request := sha256.Sum256([]byte("GET\n/\n" + encoded + "\nhost:" + host + "\n\nhost\n" + hex.EncodeToString(nothing[:])))
	key := signingKey(keys.Secret, at[:8], region, "kafka-cluster")
	signature := mac(key, "AWS4-HMAC-SHA256\n"+at+"\n"+scope+"\n"+hex.EncodeToString(request[:]))
	return "https://" + host + "/?" + encoded + "&X-Amz-Signature=" + hex.EncodeToString(signature)
}

// signingKey is the key of a day, a region and a service.
func signingKey(secret, day, region, service string) []byte {
	key := []byte("AWS4" + secret)
	for _, part := range []string{day, region, service, "aws4_request"} {
		key = mac(key, part)
	}
	return key
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
