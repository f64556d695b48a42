-- Health of a CleanRLRun for Argo CD. It reads what the operator writes for everybody: the kstatus conditions and
-- observedGeneration, never the state machine behind them.
--
--   Progressing  the operator has not seen this version of the run yet, or the run is on its way
--   Healthy      it trains, or has completed
--   Suspended    it is paused or suspended, and waits for its owner
--   Degraded     it failed, was canceled, ran out of time, or can't be read

local health = { status = "Progressing", message = "Waiting for the operator to look at this run." }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and status.observedGeneration < obj.metadata.generation then
  health.message = "Waiting for the operator to look at the newest version of this run."
  return health
end

local holds = {}
for _, condition in ipairs(status.conditions) do
  if condition.status == "True" then
    holds[condition.type] = condition
  end
  if condition.type == "Ready" then
    health.message = condition.message
  end
end

if holds.Stalled then
  health.status = "Degraded"
  health.message = holds.Stalled.message
elseif holds.Suspended then
  health.status = "Suspended"
elseif holds.Ready then
  health.status = "Healthy"
end
return health
