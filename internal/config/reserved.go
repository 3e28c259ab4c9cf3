package config

// empty is the default of a reserved map or list: nothing in it.
type empty struct{}

// reservedSetting is a name of the contract whose function is not built yet. Its default is accepted, so that a full
// sample file loads; anything else is refused, because a setting that is silently without effect is a broken promise.
type reservedSetting struct {
	path string
	def  any // string, int, bool, time.Duration or empty
}

// reserved lists them in the order of the documentation. What gets built moves to a field of [Config] and leaves here.
var reserved = []reservedSetting{}
