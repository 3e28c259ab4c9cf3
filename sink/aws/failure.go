package awssink

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// CredentialError means that there are no credentials now.
type CredentialError struct{ Err error }

func (e *CredentialError) Error() string { return e.Err.Error() }

func (e *CredentialError) Unwrap() error { return e.Err }

// failure says what it means that a request is not answered as it should be.
func (t *transport) failure(op string, err error) *lane.Failure {
	var api smithy.APIError
	var response *smithyhttp.ResponseError
	status := 0
	if errors.As(err, &response) {
		status = response.HTTPStatusCode()
	}
	if errors.As(err, &api) {
		return t.ofCode(op, api.ErrorCode(), api.ErrorMessage(), status)
	}
	f := &lane.Failure{Op: op, Code: lane.CodeOf(err), Err: err}
	of, sent := errors.AsType[*url.Error](err) // what it contains says the same at greater length
	none, without := errors.AsType[*CredentialError](err)
	switch {
	case without:
		f.Code, f.Err = lane.CodeSecret, none
	case f.Code == lane.CodeTimeout:
		f.Err = fmt.Errorf("no answer within %s (receiver.timeout)", t.cfg.Timeout)
	case sent:
		f.Err = of.Err
	case status != 0:
		f.Code, f.Err = lane.CodeUnavailable, fmt.Errorf("an answer with the status %d is none of %s", status, t.service)
	}
	return f
}

// Codes of errors. One that is not here is an outage.
var (
	codesMissing = []string{"QueueDoesNotExist", "NonExistentQueue", "QueueDeletedRecently", "NotFound"}
	codesContent = []string{"InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "BatchRequestTooLong", "InvalidParameter", "ParameterValueInvalid"}
	codesDenied  = []string{
		"AccessDenied", "AccessDeniedException", "AuthorizationError", "KmsAccessDenied", "KMSAccessDenied", "KMS.AccessDeniedException", "NotAuthorized", "OptInRequired", "InvalidSecurity", "InvalidClientTokenId",
		"UnrecognizedClientException", "MissingAuthenticationToken", "MissingAuthenticationTokenException", "ExpiredToken", "ExpiredTokenException",
	}
	codesSignature = []string{"SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature", "IncompleteSignatureException"}
)

// ofCode says what the code of an error means. status is that of the answer, 0 for one message of it.
func (t *transport) ofCode(op, code, message string, status int) *lane.Failure {
	code = code[strings.LastIndexByte(code, '#')+1:]
	f := &lane.Failure{Op: op, Code: lane.CodeUnavailable, Err: fmt.Errorf("%s answers %s: %s", t.service, code, strings.ReplaceAll(message, "\n", " "))}
	is := func(codes []string) bool {
		return slices.Contains(codes, strings.TrimPrefix(code, "AWS.SimpleQueueService."))
	}
	_, throttled := retry.DefaultThrottleErrorCodes[code]
	switch {
	case throttled || strings.Contains(code, "Throttl"):
		f.Remedy = "see the limit of requests for the " + t.service.what() + "; docs/sinks.md names the setting with which it takes more"
	case is(codesMissing), code == "InvalidParameter" && strings.Contains(message, "TopicArn"):
		f.Meaning, f.Code = lane.Missing, lane.CodeMissing
		f.Remedy = "create the FIFO " + t.service.what() + "; see whether receiver.url has its region and its account"
	case is(codesSignature):
		f.Meaning, f.Code = lane.Denied, lane.CodeDenied
		f.Err = fmt.Errorf("%s answers %s (its message is not shown, it may repeat the request)", t.service, code)
		f.Remedy = "check the secret of the access key, the region, and the clock of this machine"
	case is(codesDenied), status == http.StatusUnauthorized, status == http.StatusForbidden:
		f.Meaning, f.Code, f.Remedy = lane.Denied, lane.CodeDenied, "give the daemon's user or role the permissions in docs/sinks.md, such as "+t.service.permissions()
	case is(codesContent):
		f.Meaning, f.Code = lane.Refused, lane.CodeRefused
	}
	return f
}
