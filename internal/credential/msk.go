package credential

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
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
	signed, err := presign(ctx, keys, region, time.Now())
	if err != nil {
		return "", fmt.Errorf("sign a token for Amazon MSK in region %s: %w", region, err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(signed + "&User-Agent=outboxcdc")), nil
}

// presign signs the request that MSK makes of a token.
func presign(ctx context.Context, keys *AWSKeys, region string, now time.Time) (string, error) {
	query := url.Values{"Action": {"kafka-cluster:Connect"}, "X-Amz-Expires": {fmt.Sprint(int(mskLife.Seconds()))}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kafka."+region+".amazonaws.com/?"+query.Encode(), nil)
	if err != nil {
		return "", errors.New("the region is part of no host name")
	}
	nothing := sha256.Sum256(nil)
	credentials := aws.Credentials{AccessKeyID: keys.ID, SecretAccessKey: keys.Secret, SessionToken: keys.Session}
	signed, _, err := v4.NewSigner().PresignHTTP(ctx, credentials, req, hex.EncodeToString(nothing[:]), "kafka-cluster", region, now)
	return signed, err
}
