package dev.postroad.tests;

import org.apache.commons.configuration2.Configuration;
import org.apache.james.core.MailAddress;
import org.apache.james.core.MaybeSender;
import org.apache.james.protocols.api.handler.ProtocolHandler;
import org.apache.james.protocols.smtp.SMTPSession;
import org.apache.james.protocols.smtp.hook.HookResult;
import org.apache.james.protocols.smtp.hook.HookReturnCode;
import org.apache.james.protocols.smtp.hook.RcptHook;

/** Refuses the recipient that its configuration names, with 550. */
public class Refusing implements RcptHook, ProtocolHandler {
    private String refused;

    @Override
    public void init(Configuration configuration) {
        refused = configuration.getString("recipient");
    }

    @Override
    public HookResult doRcpt(SMTPSession session, MaybeSender sender, MailAddress recipient) {
        if (!recipient.asString().equalsIgnoreCase(refused)) {
            return HookResult.DECLINED;
        }
        return HookResult.builder()
            .hookReturnCode(HookReturnCode.deny())
            .smtpReturnCode("550")
            .smtpDescription("5.1.1 no such user")
            .build();
    }
}
