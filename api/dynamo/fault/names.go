package fault

// Names of the exceptions that say who may ask, or that there is nobody to ask.
const (
	AccessDeniedException               = "AccessDeniedException"
	ExpiredTokenException               = "ExpiredTokenException"
	IncompleteSignatureException        = "IncompleteSignatureException"
	InvalidSignatureException           = "InvalidSignatureException"
	MissingAuthenticationTokenException = "MissingAuthenticationTokenException"
	UnrecognizedClientException         = "UnrecognizedClientException"

	UnknownOperationException = "UnknownOperationException"
	InternalFailure           = "InternalFailure"
	InternalServerError       = "InternalServerError"
	ServiceUnavailable        = "ServiceUnavailable"
)

// Names of exceptions that the envelope of an answer treats differently.
const (
	IdempotentParameterMismatchException = "IdempotentParameterMismatchException"
	TransactionCanceledException         = "TransactionCanceledException"
)
