-- Health of the resources of this group, as kstatus has it: their conditions say the same for all.
local status = obj.status
if status == nil or status.conditions == nil then
  return { status = "Progressing", message = "the operator has not looked at it yet" }
end
local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready = conditions.Ready or { message = "" }
if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = ready.message }
end
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not looked at this generation yet" }
end
if obj.spec.paused then
  return { status = "Suspended", message = ready.message }
end
if conditions.Stalled ~= nil and conditions.Stalled.status == "True" then
  return { status = "Degraded", message = conditions.Stalled.message }
end
if ready.status == "True" then
  return { status = "Healthy", message = ready.message }
end
return { status = "Progressing", message = ready.message }
